// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//nolint:forbidigo // The bubble\'s clock.
package lwsdriver

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
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
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
		}
		off := func() time.Duration { return time.Until(c.Now()) }
		for _, ahead = range []time.Duration{0, time.Second, -time.Second} {
			if ask(); off() != 0 {
				t.Errorf("%s ahead, which agrees: off by %s", ahead, off())
			}
		}
		ahead, takes = 0, time.Minute
		if ask(); off() != 0 {
			t.Errorf("after a long request: off by %s", off())
		}
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
				if ask(); off() != 0 {
					t.Fatalf("two API servers: off by %s", off())
				}
			}
		}
		time.Sleep(serversSkew)
		if ask(); (off() - ahead).Abs() > time.Second {
			t.Errorf("only one has answered for %s: off by %s", serversSkew, off())
		}
	})
}
