// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
)

// The tests of this file are not parallel: controller-runtime sets the logger of the process without a lock.
func TestRunStopsWithoutCaches(t *testing.T) {
	hosttest.StopsWithoutCaches(t, func(ctx context.Context, config *rest.Config, s host.Settings) error {
		m, err := host.New(config, s, "lease", runtime.NewScheme(), nil)
		if err != nil {
			return err
		}
		return host.Run(ctx, m, host.Metadata(host.LeaderWorkerSet))
	}, hosttest.Kind{GroupVersionKind: host.LeaderWorkerSet, Resource: "leaderworkersets"})
}

func TestMetricsBeyondLoopback(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, errors.Join(err, listener.Close()))
	settings := host.Settings{Logger: slog.New(slog.DiscardHandler), MetricsAddress: "0.0.0.0:" + port}
	_, err = host.New(&rest.Config{}, settings, "lease", runtime.NewScheme(), nil)
	require.Error(t, err, "metrics beyond loopback are served without protection")
	settings.ProtectMetrics = func(http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }), nil
	}
	m, err := host.New(&rest.Config{}, settings, "lease", runtime.NewScheme(), nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	await.Nil(t, "the host's metrics are protected", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1:"+port+"/metrics", http.NoBody)
		if err != nil {
			return err
		}
		answer, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		assert.Equal(t, http.StatusTeapot, answer.StatusCode, "/metrics: %s", answer.Status)
		return answer.Body.Close()
	})
	transport.CloseIdleConnections()
	stop()
	assert.NoError(t, <-ended)
}
