// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"net"
	"os"
	"path/filepath"
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
const connectTimeout = 10 * time.Second

// Serve serves the driver on a unix socket in the test process until the test ends, and returns its address. router
// may be nil.
func Serve(t testing.TB, driver pb.WorkloadDriverServer, router pb.TrafficRouterServer) string {
	t.Helper()
	// t.TempDir carries the test's name, and a socket's path has room for about a hundred bytes.
	dir, err := os.MkdirTemp("", "lockstep-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "driver.sock")
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	plugin.Register(s, driver, router)
	healthpb.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(listener)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return "unix://" + path
}

// Connect serves the driver and returns a client of it. Both end with the test. router may be nil.
func Connect(t testing.TB, driver pb.WorkloadDriverServer, router pb.TrafficRouterServer) *plugin.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), connectTimeout)
	defer cancel()
	client, err := plugin.Dial(ctx, Serve(t, driver, router))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}
