// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package hostile

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// caller is an HTTP/2 connection of an attacker, who needs no client of gRPC.
type caller struct {
	conn *http2.ClientConn //nolint:staticcheck // The standard library's takes no connection that is dialed already.
	raw  net.Conn
	// accepted counts the calls of the attack that were not refused.
	accepted *atomic.Int64
}

func (w *world) connect(ctx context.Context) (*caller, error) {
	dialer := tls.Dialer{Config: insecure(), NetDialer: &net.Dialer{Timeout: callDeadline}}
	raw, err := dialer.DialContext(ctx, "tcp", w.address)
	if err != nil {
		return nil, err
	}
	conn, err := (&http2.Transport{StrictMaxConcurrentStreams: true}).NewClientConn(raw) //nolint:staticcheck // As above.
	if err != nil {
		return nil, err
	}
	return &caller{conn, raw, &w.accepted}, nil
}

// call makes a call and reads the answer. An empty token is none.
func (c *caller) call(ctx context.Context, method, token string, body io.Reader) (code string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://lockstep"+method, body)
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.conn.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	c.count(response)
	_, err = io.Copy(io.Discard, response.Body)
	if code = response.Trailer.Get("Grpc-Status"); code == "" {
		code = response.Header.Get("Grpc-Status")
	}
	return code, err
}

// count counts an answer. Refusals have their status in the header.
func (c *caller) count(response *http.Response) {
	if response.Header.Get("Grpc-Status") == "" {
		c.accepted.Add(1)
	}
}

// frame returns a message as gRPC frames it.
func frame(m proto.Message) io.Reader {
	raw, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return bytes.NewReader(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(raw))), raw...))
}

// unfinished is a message of just under a MiB whose last bytes never come.
type unfinished struct {
	ctx  context.Context
	sent int
}

const announced = 1<<20 - 100

func (u *unfinished) Read(p []byte) (int, error) {
	if u.sent == 0 {
		u.sent = copy(p, binary.BigEndian.AppendUint32([]byte{0}, announced))
		return u.sent, nil
	}
	if u.sent >= announced {
		<-u.ctx.Done()
		return 0, u.ctx.Err()
	}
	n := min(len(p), announced-u.sent)
	u.sent += n
	return n, nil
}

// forged returns a token that looks valid, without a signature.
func forged() string {
	id := make([]byte, 12)
	_, _ = rand.Read(id)
	claims := fmt.Sprintf(`{"aud":[%q],"exp":%d,"sub":"system:serviceaccount:default:%x"}`,
		review.Audience, time.Now().Add(time.Hour).Unix(), id)
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256","kid":"x"}`)) + "." + encode([]byte(claims)) + "." + encode(make([]byte, 256))
}

// together runs n attackers until ctx ends. Each begins again when it returns.
func together(ctx context.Context, n int, attacker func(context.Context, int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			for ctx.Err() == nil {
				attacker(ctx, i)
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	group.Wait()
}

// overConnections makes calls over connections, with so many at a time on each.
func (w *world) overConnections(ctx context.Context, connections, calls int, call func(context.Context, *caller)) {
	together(ctx, connections, func(ctx context.Context, _ int) {
		c, err := w.connect(ctx)
		if err != nil {
			return
		}
		defer c.raw.Close()
		together(ctx, calls, func(ctx context.Context, _ int) {
			if c.conn.CanTakeNewRequest() {
				call(ctx, c)
			}
		})
	})
}

// unfinishedRequests sends requests that never end, over connections with this many calls each.
func (w *world) unfinishedRequests(ctx context.Context, connections, calls int, token func() string) string {
	var begun atomic.Int64
	w.overConnections(ctx, connections, calls, func(ctx context.Context, c *caller) {
		begun.Add(1)
		_, _ = c.call(ctx, pb.WorkloadDriver_Adopt_FullMethodName, token(), &unfinished{ctx: ctx})
	})
	return fmt.Sprintf("%d calls", begun.Load())
}

func none() string { return "" }

// silentConnections opens TCP connections as fast as it can from the administrator's address, and sends nothing.
func (w *world) silentConnections(ctx context.Context) string {
	var opened atomic.Int64
	dialer := net.Dialer{Timeout: time.Second}
	together(ctx, 16, func(ctx context.Context, _ int) {
		for ctx.Err() == nil {
			conn, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(w.address, "dns:///"))
			if err != nil {
				continue
			}
			opened.Add(1)
			go func() { _, _ = conn.Read(make([]byte, 1)); _ = conn.Close() }()
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
	})
	return fmt.Sprintf("%d connections", opened.Load())
}

// manyConnections holds connections with a watch of health each, and idle ones of the port for probes.
func (w *world) manyConnections(ctx context.Context) string {
	var opened atomic.Int64
	var group sync.WaitGroup
	defer group.Wait()
	// So fast they come back: what handshakes cost the attacker, on the same machine, must not count against the driver.
	secure, plain := rate.NewLimiter(200, 100), rate.NewLimiter(1000, 100)
	group.Go(func() {
		together(ctx, 1100, func(ctx context.Context, _ int) {
			if plain.Wait(ctx) != nil {
				return
			}
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.health, "http://"))
			if err != nil {
				return
			}
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			_, _ = conn.Read(make([]byte, 1))
		})
	})
	together(ctx, 1100, func(ctx context.Context, _ int) {
		if secure.Wait(ctx) != nil {
			return
		}
		c, err := w.connect(ctx)
		if err != nil {
			return
		}
		opened.Add(1)
		defer c.raw.Close()
		watch := frame(&grpc_health_v1.HealthCheckRequest{})
		_, _ = c.call(ctx, grpc_health_v1.Health_Watch_FullMethodName, "", watch)
		for ctx.Err() == nil && c.conn.CanTakeNewRequest() { // idle
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	return fmt.Sprintf("%d connections", opened.Load())
}

// callsAtRate calls with tokens over some connections.
func (w *world) callsAtRate(
	ctx context.Context, perSecond float64, connections int, token func() string, request func() proto.Message,
) string {
	limiter := rate.NewLimiter(rate.Limit(perSecond), 50)
	var answered atomic.Int64
	together(ctx, connections, func(ctx context.Context, _ int) {
		c, err := w.connect(ctx)
		if err != nil {
			return
		}
		defer c.raw.Close()
		together(ctx, 100, func(ctx context.Context, _ int) {
			if limiter.Wait(ctx) == nil && c.conn.CanTakeNewRequest() {
				if _, err := c.call(ctx, pb.WorkloadDriver_CalculateBatchContext_FullMethodName, token(), frame(request())); err == nil {
					answered.Add(1)
				}
			}
		})
	})
	return fmt.Sprintf("%d calls answered", answered.Load())
}

// watchEverything watches all workloads with their groups, and does not read.
func (w *world) watchEverything(ctx context.Context, streams int, token string) string {
	together(ctx, streams, func(ctx context.Context, _ int) {
		c, err := w.connect(ctx)
		if err != nil {
			return
		}
		defer c.raw.Close()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://lockstep"+pb.WorkloadDriver_WatchWorkloads_FullMethodName,
			frame(&pb.WatchWorkloadsRequest{IncludeGroups: true}))
		if err != nil {
			return
		}
		req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Authorization": {"Bearer " + token}}
		response, err := c.conn.RoundTrip(req)
		if err != nil {
			return
		}
		defer response.Body.Close()
		c.count(response)
		for ctx.Err() == nil && c.conn.CanTakeNewRequest() {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	return fmt.Sprintf("%d streams", w.accepted.Load())
}

// callsInFlight makes calls over connections, with so many at a time on each.
func (w *world) callsInFlight(ctx context.Context, connections, calls int, method, token string, request func() proto.Message) string {
	w.overConnections(ctx, connections, calls, func(ctx context.Context, c *caller) {
		_, _ = c.call(ctx, method, token, frame(request()))
	})
	return fmt.Sprintf("%d calls", w.accepted.Load())
}
