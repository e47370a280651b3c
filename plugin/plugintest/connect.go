// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin"
)

// connectTimeout bounds how long a test waits for a driver in its own process.
const connectTimeout = time.Minute

// Server serves a driver on a unix socket in the test process. It can be stopped and started again, as a driver's pod is.
type Server struct {
	// Address is "unix:///path".
	Address string

	t      testing.TB
	driver pb.WorkloadDriverServer
	router pb.TrafficRouterServer

	mu sync.Mutex
	// stop is nil while the server is stopped.
	stop func()
}

// ShortDir returns a directory whose path leaves room for a socket's name: t.TempDir carries the test's name, and a socket's path has
// room for about a hundred bytes.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lockstep-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// NewServer starts a server. It stops with the test. router may be nil.
func NewServer(t testing.TB, driver pb.WorkloadDriverServer, router pb.TrafficRouterServer) *Server {
	t.Helper()
	s := &Server{Address: "unix://" + filepath.Join(ShortDir(t), "driver.sock"), t: t, driver: driver, router: router}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start serves again after Stop.
func (s *Server) Start() {
	s.t.Helper()
	listener, err := net.Listen("unix", strings.TrimPrefix(s.Address, "unix://")) //nolint:noctx // a socket in a directory of its own is bound at once
	if err != nil {
		s.t.Fatal(err)
	}
	server := grpc.NewServer()
	plugin.Register(server, s.driver, s.router)
	healthpb.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = func() {
		server.Stop()
		<-done
	}
}

// Stop breaks every connection and removes the socket. Stopping twice is no error.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// Serve serves the driver until the test ends, and returns its address. router may be nil.
func Serve(t testing.TB, driver pb.WorkloadDriverServer, router pb.TrafficRouterServer) string {
	t.Helper()
	return NewServer(t, driver, router).Address
}

// Connect serves the driver and returns a client of it. Both end with the test. router may be nil.
func Connect(t testing.TB, driver pb.WorkloadDriverServer, router pb.TrafficRouterServer) *plugin.Client {
	t.Helper()
	client, err := plugin.Dial(t.Context(), Serve(t, driver, router), plugin.DialOptions{ConnectTimeout: connectTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}
