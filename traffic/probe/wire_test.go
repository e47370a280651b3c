// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestOverTCP: the default transport, on real sockets of both families, with and without a server.
func TestOverTCP(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Skipf("this machine has no %s: %v", host, err)
			}
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "m 0") }))
			_ = server.Listener.Close()
			server.Listener = l
			server.Start()
			defer server.Close()

			changed := make(chan string, 10)
			p := New(Config{Log: slog.New(slog.DiscardHandler), Changed: func(owner string) { changed <- owner }})
			defer p.Close()
			p.loopback = true
			pod := Leader{Name: "vllm-0", UID: "u", Address: host}
			e := Endpoint{netip.MustParseAddrPort(l.Addr().String()).Port(), "/metrics"}
			drain := Drain{Metric: "m", Endpoint: e}
			since := time.Now()

			p.Warm("o", pod, WarmUp{Endpoint: e})
			<-changed
			expect(t, p.Warm("o", pod, WarmUp{Endpoint: e}), Done)
			p.Drain("o", []Leader{pod}, drain, since)
			<-changed
			expect(t, p.Drain("o", []Leader{pod}, drain, since), Done, "is 0 on 1 of 1")

			server.Close()
			p.Forget("o")
			p.Warm("o", pod, WarmUp{Endpoint: e})
			<-changed
			expect(t, p.Warm("o", pod, WarmUp{Endpoint: e}), Failed, "refused the connection")
			p.Drain("o", []Leader{pod}, drain, since)
			for got := (Progress{}); got.State != Done; { // or the warm-up was tried again
				<-changed
				got = p.Drain("o", []Leader{pod}, drain, since)
				assert.False(t, got.State == Done && !strings.Contains(got.Message, "refused"), got)
			}
		})
	}
}
