// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

var errAsked = errors.New("a request was made")

type asking struct{}

func (asking) RoundTrip(*http.Request) (*http.Response, error) { return nil, errAsked }

// TestRefused: which addresses get requests.
func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		leader  Leader
		allowed bool
		refused string // empty: it gets the request
	}{
		"pod":                      {Leader{Address: "10.0.0.1"}, false, ""},
		"IPv6 pod":                 {Leader{Address: "fd00::1"}, false, ""},
		"loopback":                 {Leader{Address: "127.9.0.1"}, true, "loopback"},
		"IPv6 loopback":            {Leader{Address: "::1"}, true, "loopback"},
		"IPv4 loopback in IPv6":    {Leader{Address: "::ffff:127.0.0.1"}, true, "loopback"},
		"metadata of a cloud":      {Leader{Address: "169.254.169.254"}, true, "link-local"},
		"IPv6 link-local":          {Leader{Address: "fe80::1%eth0"}, true, "link-local"},
		"multicast":                {Leader{Address: "224.0.0.1"}, true, "multicast"},
		"broadcast":                {Leader{Address: "255.255.255.255"}, true, "not that of a pod"},
		"unspecified":              {Leader{Address: "0.0.0.0"}, true, "unspecified"},
		"host network":             {Leader{Address: "192.0.2.1", HostNetwork: true}, false, "--probe-host-network"},
		"host network, allowed":    {Leader{Address: "192.0.2.1", HostNetwork: true}, true, ""},
		"host network, no address": {Leader{HostNetwork: true}, false, "--probe-host-network"},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(Config{Log: slog.New(slog.DiscardHandler), Changed: func(string) {}, Transport: asking{}, HostNetwork: tt.allowed})
			defer p.Close()
			r := request{endpoint: Endpoint{Port: 8080, Path: "/"}, timeout: time.Second}
			err := p.do(t.Context(), tt.leader, r, func(io.Reader) error { return nil })
			assert.False(t, tt.refused == "" && !errors.Is(err, errAsked), "%v, want a request", err)
			assert.False(t, tt.refused != "" && (err == nil || errors.Is(err, errAsked) || !strings.Contains(err.Error(), tt.refused)),
				"%v, want a refusal with %q", err, tt.refused)
		})
	}
}
