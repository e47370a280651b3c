// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/compatibility"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// engine is a server.Driver over a fake driver.
type engine struct {
	pb.WorkloadDriverServer
	pb.TrafficRouterServer

	run func(context.Context) error
}

func (e engine) Ready() error                  { return nil }
func (e engine) Fresh() error                  { return nil }
func (e engine) Drain()                        {}
func (e engine) Run(ctx context.Context) error { return e.run(ctx) }

// untilEnd is the Run of a driver that does not fail.
func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// lockstep is the result of a run of the program.
type lockstep struct {
	code           int
	stdout, stderr string
	settings       lwsdriver.Options
	config         *rest.Config
}

func runLockstep(ctx context.Context, t *testing.T, failure error, args ...string) lockstep {
	t.Helper()
	t.Setenv("KUBECONFIG", twoContexts(t))
	var l lockstep
	var stdout, stderr buffer
	p := Program{Args: args, Stdout: &stdout, Stderr: &stderr}
	p.NewDriver = func(config *rest.Config, settings lwsdriver.Options) (server.Driver, error) {
		l.config, l.settings = config, settings
		d := plugintest.NewFakeDriver()
		if failure == nil {
			return engine{d, d, untilEnd}, nil
		}
		return engine{d, d, func(context.Context) error { return failure }}, nil
	}
	l.code = p.Run(ctx)
	l.stdout, l.stderr = stdout.String(), stderr.String()
	return l
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

func TestRunWithoutCommandPrintsAbout(t *testing.T) {
	l := runLockstep(t.Context(), t, nil)
	assert.True(t, l.code == 0 && l.stderr == "", "code %d, stderr %q; want 0 and nothing", l.code, l.stderr)
	for _, want := range []string{"a plugin", "a server", "commands"} {
		assert.Contains(t, l.stdout, want, "the text lacks %q:\n%s", want, l.stdout)
	}
}

// The help of each command fits a screen.
func TestHelpFitsScreen(t *testing.T) {
	var visit func(path []string, cmd *cobra.Command)
	visit = func(path []string, cmd *cobra.Command) {
		args := append(slices.Clone(path), "--help")
		if cmd.IsAdditionalHelpTopicCommand() {
			args = append([]string{"help"}, path...)
		}
		if l := runLockstep(t.Context(), t, nil, args...); l.code != 0 || l.stdout == "" || strings.Count(l.stdout, "\n") > 40 {
			t.Errorf("%q has %d lines:\n%s", args, strings.Count(l.stdout, "\n"), l.stdout)
		}
		for _, sub := range cmd.Commands() {
			visit(append(slices.Clone(path), sub.Name()), sub)
		}
	}
	visit(nil, newRootCommand(&connect.Options{Stdout: &buffer{}, Stderr: &buffer{}}))
}

// The command itself shows that a release has failed, which its driver would log, too.
func TestCommandsLogErrorsOnly(t *testing.T) {
	for level, want := range map[string]bool{"": false, "--log-level=warn": true} {
		l := runLockstep(t.Context(), t, nil, strings.Fields("status vllm "+level)...)
		assert.True(t, l.settings.Logger != nil && l.settings.Logger.Enabled(t.Context(), slog.LevelWarn) == want,
			"status %s logs warnings: %t, want %t", level, !want, want)
	}
}

func TestVersionIsSetByLinker(t *testing.T) {
	before := buildVersion
	t.Cleanup(func() { buildVersion = before })
	for _, buildVersion = range []string{before, "v1.2.3-4-gabcdef"} {
		l := runLockstep(t.Context(), t, nil, "--version")
		assert.False(t, l.code != 0 || l.stdout != "lockstep "+buildVersionOf()+"\n" ||
			buildVersion != before && buildVersionOf() != buildVersion, "code %d, stdout %q, want what the linker set", l.code, l.stdout)
	}
}

func TestVersionCommand(t *testing.T) {
	l := runLockstep(t.Context(), t, nil, "version")
	for _, want := range []string{buildVersionOf(), runtime.Version(), "lockstep.v1alpha1", "LeaderWorkerSet  " + compatibility.LWS.Default() + ", "} {
		assert.Contains(t, l.stdout, want, "lockstep version lacks %q:\n%s", want, l.stdout)
	}
	assert.True(t, l.code == 0 && l.stderr == "" && l.config == nil,
		"code %d, stderr %q, config %v; want success without a cluster", l.code, l.stderr, l.config)
}

func TestUsageErrors(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		args   []string
		text   string
	}{
		{"flag", "a typo must not be ignored", []string{"--kubeconfg=x"}, "--kubeconfg"},
		{"flag of a command", "a typo must not be ignored", []string{"serve", "--lissten=x"}, "--lissten"},
		{"command", "a typo must not print the help text and succeed", []string{"sevre"}, "sevre"},
		{"similar command", "a typo is easy to correct", []string{"relese"}, "did you mean release?"},
		{"format of a document", "a typo must not print plain text", []string{"status", "vllm", "-o", "xml"}, "xml"},
		{"argument", "serve takes none", []string{"serve", "x"}, `"x"`},
		{"log level", "logs are not lost to a typo", []string{"serve", "--log-level=loud"}, "loud"},
		{"deadline", "policies without one would exceed it", []string{"serve", "--max-progress-deadline=10m"}, "want at least 30m0s"},
		{"log format", "logs are not garbled by a typo", []string{"serve", "--log-format=xml"}, "xml"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := runLockstep(t.Context(), t, nil, tt.args...)
			assert.Equal(t, exit.Usage, l.code, "%s: code", tt.reason)
			assert.True(t, strings.Contains(l.stderr, tt.text) && strings.Count(l.stderr, "\n") == 1,
				"%s: stderr %q, want one line with %q", tt.reason, l.stderr, tt.text)
			assert.Empty(t, l.stdout, "stdout %q, want nothing", l.stdout)
		})
	}
}

func TestServe(t *testing.T) {
	path := filepath.Join(plugintest.ShortDir(t), "l.sock")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	connected := make(chan error, 1)
	go func() {
		defer cancel()
		client, err := dialEventually(ctx, "unix://"+path)
		if err == nil {
			err = client.Close()
		}
		connected <- err
	}()
	l := runLockstep(ctx, t, nil, "serve", "--listen", "unix://"+path, "-n", "models", "--context", "there", "--log-format=json")
	assert.Zero(t, l.code, "code %d after the end, want 0: %s", l.code, l.stderr)
	assert.NoError(t, <-connected, "connect")
	if l.settings.Namespace != "models" || l.config.Host != "http://127.0.0.1:2" || l.settings.Metrics == nil {
		t.Errorf("driver got %+v for %s", l.settings, l.config.Host)
	}
	assert.Contains(t, l.stderr, `"msg":"serving"`, "the log is not JSON")
}

func TestServeFails(t *testing.T) {
	for text, args := range map[string][]string{
		"no such cluster": {"--listen", "unix://" + filepath.Join(plugintest.ShortDir(t), "l.sock")},
		"--tls-cert":      {"--listen", "0.0.0.0:0"},
		"/no/such/file":   {"--kubeconfig", "/no/such/file"},
	} {
		l := runLockstep(t.Context(), t, errors.New("no such cluster"), append([]string{"serve"}, args...)...)
		assert.True(t, l.code == exit.Error && strings.Contains(l.stderr, text),
			"serve %s: code %d, stderr %q; want %d and %s", args, l.code, l.stderr, exit.Error, text)
	}
}

func TestWithoutKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var stderr buffer
	p := Program{Args: []string{"status", "vllm"}, Stdout: &buffer{}, Stderr: &stderr}
	if code := p.Run(t.Context()); code != exit.Error || !strings.Contains(stderr.String(), "--kubeconfig") {
		t.Errorf("code %d, stderr %q; want %d and the flag to give", code, stderr.String(), exit.Error)
	}
}

func TestPluginArguments(t *testing.T) {
	o := &connect.Options{Stderr: &buffer{}}
	require.NoError(t, parsePluginArgs(o, []string{"--context=there", "-n", "models", "--max-groups-in-flight", "8"}))
	assert.True(t, o.Namespace == "models" && o.MaxGroupsInFlight == 8, "parsed %+v", o.Options)
	for _, args := range [][]string{{"serve"}, {"--no-such-flag"}} {
		err := parsePluginArgs(&connect.Options{Stderr: &buffer{}}, args)
		assert.Equal(t, exit.Usage, exit.Code(err), "%v: %v, want a usage error", args, err)
	}
}

func TestDefaultListen(t *testing.T) {
	tests := []struct {
		name, reason, runtimeDir string
		uid                      int
		want                     string
	}{
		{"session", "the runtime directory is private to the user", "/run/user/1000", 1000, "unix:///run/user/1000/lockstep/lockstep.sock"},
		{"root", "system services use /run", "", 0, "unix:///run/lockstep/lockstep.sock"},
		{"neither", "all users can write to the temporary directory", "", 1000, "unix://" + filepath.Join(os.TempDir(), "lockstep-1000/lockstep.sock")},
		{"relative", "it would depend on the working directory", "run", 0, "unix:///run/lockstep/lockstep.sock"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, defaultListen(func(string) string { return tt.runtimeDir }, tt.uid), tt.reason)
		})
	}
}

// dialEventually retries until the server listens.
func dialEventually(ctx context.Context, address string) (*plugin.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	for {
		client, err := plugin.Dial(ctx, address, plugin.DialOptions{})
		if err == nil || !plugin.Retryable(err) {
			return client, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}
