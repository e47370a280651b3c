// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//nolint:forbidigo // The bubble's clock.
package lwsdriver

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The clock follows the API server's, whatever this machine's says, and answers that agree do not move it.
func TestClockFollowsTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead, takes time.Duration
		c := newClock()
		transport := c.wrap(roundTripper(func(*http.Request) (*http.Response, error) {
			dated := time.Now().Add(ahead)
			time.Sleep(takes)
			return &http.Response{Header: http.Header{"Date": {dated.UTC().Format(http.TimeFormat)}}, Body: http.NoBody}, nil
		}))
		ask := func() {
			answer, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			require.NoError(t, err)
			_ = answer.Body.Close()
		}
		off := func() time.Duration { return time.Until(c.Now()) }
		for _, ahead = range []time.Duration{0, time.Second, -time.Second} {
			ask()
			assert.Zero(t, off(), "%s ahead, which agrees: off by", ahead)
		}
		ahead, takes = 0, time.Minute
		ask()
		assert.Zero(t, off(), "after a long request: off by")
		takes = 0
		for _, ahead = range []time.Duration{time.Hour, -time.Hour, 0} {
			ask()
			time.Sleep(10 * time.Second)
			if got := off() - ahead; got.Abs() > time.Second {
				t.Errorf("%s ahead: off by %s", ahead, off())
			}
		}
		// The other API server's clock, 5 s ahead.
		for range 100 {
			for _, ahead = range []time.Duration{0, 5 * time.Second} {
				time.Sleep(time.Second)
				ask()
				require.Zero(t, off(), "two API servers: off by")
			}
		}
		time.Sleep(serversSkew)
		if ask(); (off() - ahead).Abs() > time.Second {
			t.Errorf("only one has answered for %s: off by %s", serversSkew, off())
		}
	})
}
