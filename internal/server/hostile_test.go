// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/tlstest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// unfinished is a message of almost a MiB whose end never comes.
type unfinished struct {
	ctx  context.Context //nolint:containedctx // it is a stream
	left int
	sent bool
}

func (u *unfinished) Read(p []byte) (int, error) {
	if !u.sent {
		u.sent = true
		return copy(p, binary.BigEndian.AppendUint32([]byte{0}, uint32(u.left+1))), nil
	}
	if u.left == 0 {
		<-u.ctx.Done()
		return 0, u.ctx.Err()
	}
	n := min(len(p), u.left)
	u.left -= n
	return n, nil
}

// attack begins calls without an end over one connection, and returns the memory that they hold.
func attack(t *testing.T, address, bearer string, calls int) (held int64) {
	t.Helper()
	raw, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	defer raw.Close()
	conn, err := (&http2.Transport{StrictMaxConcurrentStreams: true}).NewClientConn(raw) //nolint:staticcheck // The standard library's takes no connection that is dialed already.
	require.NoError(t, err)
	memory := func() int64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	before := memory()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var calling sync.WaitGroup
	for range calls {
		calling.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://lockstep"+pb.WorkloadDriver_Adopt_FullMethodName,
				&unfinished{ctx: ctx, left: 1<<20 - 100})
			if err != nil {
				return
			}
			req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
			if bearer != "" {
				req.Header.Set("Authorization", "Bearer "+bearer)
			}
			if response, err := conn.RoundTrip(req); err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
	<-time.After(time.Second) // the attacker sends what it may
	held = memory() - before
	calling.Wait()
	return held
}

// Requests that never end cost little, with any credentials, and callers without credentials cost no review.
func TestUnfinishedRequests(t *testing.T) {
	ca := tlstest.NewCA(t)
	cert := ca.Files(t, "server")
	reviewer, reviews := counting(t)
	s := start(t, newDriver(), server.Options{
		Listen: "127.0.0.1:0", TLSCert: cert.Cert, TLSKey: cert.Key, Reviewer: reviewer, MetricsAddress: "127.0.0.1:0",
	})
	later := time.Now().Add(time.Hour)
	for name, attacker := range map[string]struct {
		token   string
		reviews int64
	}{
		"without credentials": {"", 0},
		"a random token":      {"0123456789abcdef", 0},
		"another audience":    {token("eve", "https://kubernetes.default.svc", later), 0},
		"expired":             {token("eve", review.Audience, time.Now()), 0},
		"a forged token":      {token("forged", review.Audience, later), 1},
		"a user":              {token("eve", review.Audience, later), 1},
	} {
		t.Run(name, func(t *testing.T) {
			before := reviews.Load()
			held := attack(t, s.Addr(), attacker.token, 400)
			assert.LessOrEqual(t, held, int64(24<<20), "400 calls hold %d MiB", held>>20)
			n := reviews.Load() - before
			assert.Equal(t, attacker.reviews, n, "%d reviews, want %d", n, attacker.reviews)
			path := filepath.Join(t.TempDir(), "token")
			require.NoError(t, os.WriteFile(path, []byte(token("ada", review.Audience, later)), 0o600))
			client := dial(t, s.Addr(), plugin.WithCA(ca.File), plugin.WithTokenFile(path))
			_, err := client.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{Workload: vllm()})
			assert.NoError(t, err, "another caller")
			reviews.Store(0)
		})
	}
	const want = `lockstep_refused_calls_total{grpc_code="Unauthenticated"} `
	assert.Contains(t, get(t, "http://"+s.MetricsAddr()+"/metrics").body, want, "/metrics lacks %s", want)
}
