// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
)

// longRunning closes a channel when it is drained, and another when Run returns.
type longRunning struct {
	*plugintest.FakeDriver

	drained, ended chan struct{}
}

func (e longRunning) Ready() error { return nil }
func (e longRunning) Fresh() error { return nil }

func (e longRunning) Drain() { close(e.drained) }

func (e longRunning) Run(ctx context.Context) error {
	<-ctx.Done()
	close(e.ended)
	return nil
}

func TestRunBesideStopsDriverAfterServer(t *testing.T) {
	t.Parallel()
	engine := longRunning{drained: make(chan struct{}), ended: make(chan struct{})}
	ctx, interrupt := context.WithCancel(t.Context())
	err := RunBeside(ctx, engine, func(ctx context.Context) error {
		interrupt()
		<-ctx.Done()
		<-engine.drained
		// A call in flight: the driver has to write, and to keep its caches for the response.
		select {
		case <-engine.ended:
			t.Error("the driver was stopped while a call was in flight")
		case <-time.After(50 * time.Millisecond):
		}
		return nil
	})
	assert.NoError(t, err, "RunBeside")
	select {
	case <-engine.ended:
	default:
		t.Error("the driver was not stopped after the server")
	}
}

func TestMutedLogDropsLines(t *testing.T) {
	var out bytes.Buffer
	logs := &muteable{w: &out}
	_, err := logs.Write([]byte("before\n"))
	logs.muted.Store(true)
	n, errAfter := logs.Write([]byte("after\n"))
	if out.String() != "before\n" || n != len("after\n") || err != nil || errAfter != nil {
		t.Errorf("logged %q, wrote %d, %v, %v", out.String(), n, err, errAfter)
	}
}

// A full disk ends the recording with one line in the log, and nothing else.
func TestDriverLogsEndOfRecording(t *testing.T) {
	var logs bytes.Buffer
	var decided func(plan.Observation, plan.Intent, plan.Decision, error)
	o := Options{
		kubeconfig: twoContexts(t), record: "/dev/full",
		NewDriver: func(_ *rest.Config, options lwsdriver.Options) (server.Driver, error) {
			decided = options.Decided
			return longRunning{}, nil
		},
	}
	o.Limits.ProgressDeadline = record.DefaultProgressDeadline
	_, err := o.Driver(slog.New(slog.NewTextHandler(&logs, nil)))
	require.NoError(t, err)
	decided(plan.Observation{}, plan.Adopt{}, plan.Decision{}, nil)
	decided(plan.Observation{}, plan.Adopt{}, plan.Decision{}, nil)
	if text := logs.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "no space left on device") || !strings.Contains(text, "file=/dev/full") {
		t.Errorf("logged %q, want one line with the file and the error", text)
	}
}

// A host reads an object of each of its Rollouts when it starts, which would take minutes with client-go's limit.
func TestRESTConfigLiftsTheLimit(t *testing.T) {
	t.Parallel()
	o := Options{kubeconfig: twoContexts(t)}
	config, err := o.RESTConfig()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, config.QPS, float32(lwsdriver.DefaultQPS))
}

func TestWorkloadNamespace(t *testing.T) {
	tests := []struct {
		name, reason string
		options      Options
		want         string
	}{
		{"context", "as kubectl does", Options{}, "models"},
		{"flag", "the flag overrides the context", Options{Options: lwsdriver.Options{Namespace: "other"}}, "other"},
		{"neither", "as kubectl does", Options{kubeContext: "there"}, "default"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.options.kubeconfig = twoContexts(t)
			got, err := tt.options.WorkloadNamespace()
			assert.True(t, err == nil && got == tt.want, "%s: %q, %v; want %q", tt.reason, got, err, tt.want)
		})
	}
}

func twoContexts(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	const text = `apiVersion: v1
kind: Config
current-context: here
clusters:
- {name: here, cluster: {server: "http://127.0.0.1:1"}}
- {name: there, cluster: {server: "http://127.0.0.1:2"}}
contexts:
- {name: here, context: {cluster: here, namespace: models}}
- {name: there, context: {cluster: there}}
`
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
