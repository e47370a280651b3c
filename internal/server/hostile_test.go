// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/access"
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

// heap returns the memory in use.
func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc + stats.StackInuse)
}

// attack begins calls without an end over one connection, and returns the memory that they hold.
func attack(t *testing.T, address, bearer string, calls int) (held int64) {
	t.Helper()
	raw, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	defer raw.Close()
	conn, err := (&http2.Transport{StrictMaxConcurrentStreams: true}).NewClientConn(raw) //nolint:staticcheck // The standard library's takes no connection that is dialed already.
	require.NoError(t, err)
	before := heap()
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
	held = heap() - before
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
			client := dial(t, s.Addr(), plugin.DialOptions{CA: ca.File, TokenFile: path})
			_, err := client.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{Workload: vllm()})
			assert.NoError(t, err, "another caller")
			reviews.Store(0)
		})
	}
	const want = `lockstep_refused_calls_total{grpc_code="Unauthenticated"} `
	assert.Contains(t, get(t, "http://"+s.MetricsAddr()+"/metrics").body, want, "/metrics lacks %s", want)
}

// voluminous is a driver with a long history.
type voluminous struct{ *driver }

func (voluminous) ListRevisions(ctx context.Context, _ *pb.ListRevisionsRequest) (*pb.ListRevisionsResponse, error) {
	if !access.Turn(ctx) {
		return nil, ctx.Err()
	}
	return &pb.ListRevisionsResponse{Revisions: []*pb.Revision{{Name: strings.Repeat("x", 1<<20)}}}, nil
}

func (v voluminous) GetDriverInfo(ctx context.Context, req *pb.GetDriverInfoRequest) (*pb.GetDriverInfoResponse, error) {
	info, err := v.driver.GetDriverInfo(ctx, req)
	info.Capabilities = append(info.GetCapabilities(), pb.Capability_CAPABILITY_LIST_REVISIONS)
	return info, err
}

// unread makes calls over a connection that lets the server send no answer. The channel is closed once the server has closed it.
func unread(t *testing.T, address, method, bearer string, padding int) (closed <-chan struct{}) {
	t.Helper()
	raw, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = raw.Close() })
	end := make(chan struct{})
	go func() {
		defer close(end)
		_, _ = io.Copy(io.Discard, raw)
	}()
	_, err = raw.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	framer := http2.NewFramer(raw, nil)
	require.NoError(t, framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	for i := range 100 {
		var block bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		for _, field := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "lockstep"}, {Name: ":path", Value: method},
			{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}, {Name: "authorization", Value: "Bearer " + bearer},
			{Name: "padding", Value: strings.Repeat("x", padding)},
		} {
			require.NoError(t, encoder.WriteField(field))
		}
		stream := uint32(2*i + 1)
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true}))
		require.NoError(t, framer.WriteData(stream, true, make([]byte, 5))) // an empty message
	}
	return end
}

// Answers that are not read cost little, with any credentials, and delay others for a while only.
func TestUnreadAnswers(t *testing.T) {
	ca := tlstest.NewCA(t)
	cert := ca.Files(t, "server")
	reviewer, _ := counting(t)
	s := start(t, voluminous{newDriver()}, server.Options{
		Listen: "127.0.0.1:0", TLSCert: cert.Cert, TLSKey: cert.Key, Reviewer: reviewer, UserQPS: 1000, MetricsAddress: "127.0.0.1:0",
	})
	later := time.Now().Add(time.Hour)
	eve := token("eve", review.Audience, later)
	before := heap()
	var closed []<-chan struct{}
	for _, attack := range []struct {
		method, token        string
		connections, padding int
	}{
		{pb.WorkloadDriver_ListRevisions_FullMethodName, eve, 1, 0},
		{pb.WorkloadDriver_GetDriverInfo_FullMethodName, eve, 32, 14 << 10},
		{healthpb.Health_Check_FullMethodName, "", 32, 14 << 10},
	} {
		for range attack.connections {
			closed = append(closed, unread(t, s.Addr(), attack.method, attack.token, attack.padding))
		}
	}
	<-time.After(time.Second) // the server answers what it may
	held := heap() - before
	assert.LessOrEqual(t, held, int64(36<<20), "unread answers hold %d MiB", held>>20)
	path := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(path, []byte(token("ada", review.Audience, later)), 0o600))
	client := dial(t, s.Addr(), plugin.DialOptions{CA: ca.File, TokenFile: path})
	_, err := client.ListRevisions(t.Context(), &pb.ListRevisionsRequest{Workload: vllm()})
	assert.NoError(t, err, "another caller")
	metrics := get(t, "http://"+s.MetricsAddr()+"/metrics").body
	for _, method := range []string{"ListRevisions", "GetDriverInfo", "Check"} {
		assert.Regexp(t, `grpc_server_started_total{grpc_method="`+method+`",[^}]*} [1-9]`, metrics)
	}
	<-closed[0]
}
