// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Server serves a Driver on a unix socket and can be stopped and started again, as a driver's pod is.
type Server struct {
	// Address is "unix:///path".
	Address string

	t      testing.TB
	path   string
	driver pb.WorkloadDriverServer
	mu     sync.Mutex
	server *grpc.Server
}

// Serve starts a server for driver. It stops with the test.
func Serve(t testing.TB, driver pb.WorkloadDriverServer) *Server {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	s := &Server{Address: "unix://" + path, t: t, path: path, driver: driver}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start listens on the socket and serves. The server must be stopped.
func (s *Server) Start() {
	s.t.Helper()
	listener, err := net.Listen("unix", s.path) //nolint:noctx // A socket in a directory of its own is bound at once.
	if err != nil {
		s.t.Fatalf("listen on %s: %v", s.path, err)
	}
	server := grpc.NewServer()
	pb.RegisterWorkloadDriverServer(server, s.driver)
	if router, ok := s.driver.(pb.TrafficRouterServer); ok {
		pb.RegisterTrafficRouterServer(server, router)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = server
	go func() { _ = server.Serve(listener) }()
}

// Stop breaks every connection and removes the socket. Stopping twice is no error.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		s.server.Stop()
		s.server = nil
	}
}
