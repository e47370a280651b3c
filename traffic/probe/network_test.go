// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is a pod network inside a test's bubble: real HTTP, over pipes.
type network struct {
	mu    sync.Mutex
	pods  map[string]http.Handler // by address and port
	fails map[string]error        // the errors of connections to an address
}

// serve serves a handler at an address and port. A nil handler removes it.
func (n *network) serve(addr string, h http.HandlerFunc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h == nil {
		delete(n.pods, addr)
		return
	}
	n.pods[addr] = h
}

func (n *network) dial(_ context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.fails[addr]; err != nil {
		return nil, refusal(network, err)
	}
	h := n.pods[addr]
	if h == nil {
		return nil, refusal(network, syscall.ECONNREFUSED)
	}
	client, server := net.Pipe()
	one := make(listener, 1)
	one <- server
	close(one)
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.Serve(one) }()
	return client, nil
}

func refusal(network string, err error) error {
	return &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", err)}
}

// listener accepts the connections that were put into it.
type listener chan net.Conn

func (l listener) Accept() (net.Conn, error) {
	if conn, ok := <-l; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (listener) Close() error { return nil }

func (listener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// fixture is a Prober in a bubble.
type fixture struct {
	*Prober

	net     *network
	changes atomic.Int64
	log     bytes.Buffer // read it after Close
}

// inBubble runs a test with fake time, and a Prober that is closed at its end.
func inBubble(t *testing.T, test func(t *testing.T, b *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &fixture{net: &network{pods: map[string]http.Handler{}, fails: map[string]error{}}}
		transport := newTransport()
		transport.DialContext = b.net.dial
		b.Prober = New(Config{
			Transport: transport, Changed: func(string) { b.changes.Add(1) },
			Log: slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		defer b.Close()
		test(t, b)
	})
}

// after waits for some time, then until all goroutines are blocked.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// counted responds with a status and counts the requests.
func counted(status int) (http.HandlerFunc, *atomic.Int64) {
	var n atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		w.WriteHeader(status)
	}, &n
}

// slow responds after a delay, or not if the client has disconnected.
func slow(d time.Duration) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
	}
}

func leader(i int) Leader {
	return Leader{Name: fmt.Sprintf("vllm-%d", i), UID: fmt.Sprintf("uid-%d", i), Address: fmt.Sprintf("10.0.0.%d", i)}
}

// at returns where a leader serves.
func at(i int) string { return fmt.Sprintf("10.0.0.%d:8000", i) }

// times are the times of events.
type times struct {
	mu   sync.Mutex
	list []time.Duration
}

func (l *times) add(at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, at)
}

func (l *times) all() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// crowd counts concurrent requests.
type crowd struct {
	mu        sync.Mutex
	now, most int
}

func (c *crowd) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.most = max(c.most, c.now)
}

func (c *crowd) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
}

// peak returns the most requests at a time.
func (c *crowd) peak() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

func (c *crowd) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}
