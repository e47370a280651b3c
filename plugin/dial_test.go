// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/tlstest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// serveTCP serves the fake driver on loopback until the test ends.
func serveTCP(t *testing.T, address string, opts ...grpc.ServerOption) string {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	s := grpc.NewServer(opts...)
	plugin.Register(s, plugintest.NewFakeDriver(), nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(listener)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return listener.Addr().String()
}

func dialAndClose(t *testing.T, address string, o plugin.DialOptions) {
	t.Helper()
	client, err := plugin.Dial(t.Context(), address, o)
	require.NoError(t, err, "Dial(%q)", address)
	assert.Equal(t, "fake.lockstep.dev", client.Info().GetName(), "driver")
	assert.NoError(t, client.Close(), "Close")
	assert.NoError(t, client.Close(), "Close again")
}

func TestDial(t *testing.T) {
	driver := plugintest.NewFakeDriver()
	tcp := serveTCP(t, "127.0.0.1:0")
	_, port, err := net.SplitHostPort(tcp)
	require.NoError(t, err)
	tests := []struct{ name, address string }{
		{"unix socket", plugintest.Serve(t, driver, driver)},
		{"loopback", tcp},
		{"name", "dns:///localhost:" + port},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { dialAndClose(t, tt.address, plugin.DialOptions{}) })
	}
}

func TestDialNeedsTLS(t *testing.T) {
	ca := tlstest.NewCA(t)
	tests := []struct {
		name   string
		reason string
		opts   plugin.DialOptions
	}{
		{"plaintext", "anyone on the network could release", plugin.DialOptions{}},
		{
			"no client certificate", "the server could not identify the client",
			plugin.DialOptions{CA: ca.File},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, address := range []string{"192.0.2.1:443", "dns:///driver.example.com:443", ":443"} {
				_, err := plugin.Dial(t.Context(), address, tt.opts)
				assert.ErrorIs(t, err, plugin.ErrNeedsTLS, "Dial(%q) = %v, want ErrNeedsTLS: %s", address, err, tt.reason)
			}
		})
	}
}

func TestDialMutualTLS(t *testing.T) {
	ca := tlstest.NewCA(t)
	address := serveTCP(t, "127.0.0.1:0", grpc.Creds(credentials.NewTLS(ca.ServerConfig(t))))
	client := ca.Files(t, "client")
	dialAndClose(t, address, plugin.DialOptions{Cert: client.Cert, Key: client.Key, CA: ca.File})

	stranger := tlstest.NewCA(t)
	for name, opts := range map[string]plugin.DialOptions{
		"plaintext":          {},
		"foreign CA":         {Cert: client.Cert, Key: client.Key, CA: stranger.File},
		"no certificate":     {CA: ca.File},
		"missing files":      {Cert: "no.crt", Key: "no.key", CA: "no.ca"},
		"CA without content": {Cert: client.Cert, Key: client.Key, CA: client.Key},
	} {
		if c, err := plugin.Dial(t.Context(), address, opts); err == nil {
			_ = c.Close()
			t.Errorf("%s: connected", name)
		}
	}
}

// Certificates and CA are renewed while hosts run: each connection presents and trusts those that are there.
func TestDialRenewedFiles(t *testing.T) {
	before, after := tlstest.NewCA(t), tlstest.NewCA(t)
	var serves atomic.Pointer[tls.Config]
	serves.Store(before.ServerConfig(t))
	config := serves.Load().Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return serves.Load(), nil }
	address := serveTCP(t, "127.0.0.1:0", grpc.Creds(credentials.NewTLS(config)),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 50 * time.Millisecond}))
	files := before.Files(t, "client")
	client, err := plugin.Dial(t.Context(), address, plugin.DialOptions{Cert: files.Cert, Key: files.Key, CA: before.File})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	var connected atomic.Bool
	renewed := after.ServerConfig(t)
	renewed.NextProtos = []string{"h2"}
	renewed.VerifyConnection = func(tls.ConnectionState) error { connected.Store(true); return nil }
	serves.Store(renewed)
	fresh := after.Files(t, "client")
	for from, to := range map[string]string{fresh.Cert: files.Cert, fresh.Key: files.Key, after.File: before.File} {
		require.NoError(t, os.Rename(from, to))
	}
	await.Nil(t, "the renewed CA is in effect", func(ctx context.Context) error {
		renewed := connected.Load()
		if _, err := client.GetDriverInfo(ctx, &pb.GetDriverInfoRequest{}); err != nil {
			return fmt.Errorf("call: %w", err)
		}
		if !renewed {
			return errors.New("the connection is the old one")
		}
		return nil
	})
}

func TestDialNobodyListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "no.sock")
	begin := time.Now()
	_, err := plugin.Dial(t.Context(), "unix://"+path, plugin.DialOptions{})
	assert.True(t, status.Code(err) == codes.Unavailable && plugin.Retryable(err), "error is %v, want UNAVAILABLE", err)
	assert.ErrorContains(t, err, path, "error %v does not name the address", err)
	took := time.Since(begin)
	assert.LessOrEqual(t, took, 5*time.Second, "took %v, want an error at once", took)
}

func TestDialWaitsForReady(t *testing.T) {
	address := serveTCP(t, "127.0.0.1:0")
	dialAndClose(t, address, plugin.DialOptions{WaitForReady: true})

	_, err := plugin.Dial(t.Context(), "unix://"+filepath.Join(t.TempDir(), "no.sock"),
		plugin.DialOptions{WaitForReady: true, ConnectTimeout: 50 * time.Millisecond})
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err), "error is %v, want DEADLINE_EXCEEDED: the wait is bounded", err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = plugin.Dial(ctx, address, plugin.DialOptions{})
	assert.Equal(t, codes.Canceled, status.Code(err), "error is %v, want CANCELED", err)
}
