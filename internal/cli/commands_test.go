// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const kubeconfigText = `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c, user: u, namespace: default}}]
users: [{name: u, user: {}}]
`

// writeKubeconfig writes a kubeconfig for a port on which nothing listens.
func writeKubeconfig(t testing.TB) string {
	t.Helper()
	return writeKubeconfigOf(t, "http://127.0.0.1:1")
}

func writeKubeconfigOf(t testing.TB, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, kubeconfigText, server), 0o600))
	return path
}

type buffer = text.Buffer

// ran is the result of a run of the program.
type ran struct {
	code           int
	stdout, stderr string
}

// runProgram runs a command line against the fake driver behind address.
func runProgram(ctx context.Context, t testing.TB, address string, args ...string) ran {
	t.Helper()
	var stdout, stderr buffer
	args = append(args, "--kubeconfig", writeKubeconfig(t))
	if address != "" {
		args = append(args, "--address", address)
	}
	p := Program{Args: args, Stdout: &stdout, Stderr: &stderr}
	code := p.Run(ctx)
	return ran{code: code, stdout: stdout.String(), stderr: stderr.String()}
}

func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	t.Cleanup(cancel)
	return ctx
}

var canary = []string{"release", "vllm", "--style", "canary", "--batches", "25%,50%,100%"}

func with(args []string, more ...string) []string {
	return append(append([]string(nil), args...), more...)
}

// failed is an OnUpgrade after which the release has failed.
func failed(_ int32, c *pb.BatchContext) error {
	c.State, c.Reason, c.Message = pb.State_STATE_FAILED, "ProgressDeadlineExceeded", "no new ready group for 30m"
	return nil
}

func inFlight(d *hosttest.Driver) {
	d.Set(func(c *pb.BatchContext) {
		c.ReleaseId, c.Owner, c.State = "r1", "lockstep-cli/jo@laptop", pb.State_STATE_READY
	})
}

// anothers has a release of another host in flight.
func anothers(state pb.State) func(*hosttest.Driver) {
	return func(d *hosttest.Driver) {
		d.Set(func(c *pb.BatchContext) { c.ReleaseId, c.Owner, c.State = "r1", "argo-rollouts/default/vllm", state })
	}
}

// Command lines that are wrong say what is, and what to use instead.
func TestUsage(t *testing.T) {
	t.Parallel()
	const release = "release vllm --batches 25%,50%,100% "
	for line, says := range map[string]string{
		"get":                                "lockstep status lists workloads", // as kubectl has it
		"release vllm --dry-run":             "lockstep plan NAME shows",
		"release":                            "needs the name of one LeaderWorkerSet",
		release + "--retry-for 0":            "--retry-for 0s: want more than 0", // it would mean the default
		"promote vllm --retry-for=-5s":       "--retry-for -5s: want more than 0",
		release + "--max-groups-in-flight 8": "--max-groups-in-flight is for a driver inside this process: with --address give it",
		release + "--weights 10,50,100":      "does not split requests",
		release + "--http-route vllm":        "--http-route: no Service",
		"release vllm --batches 25,50":       "--batches 25,50: default/vllm has 4 groups; for percentages write --batches 25%,50%\n",
		"release vllm --batches 50,100%":     "--batches, number 2: \"100%\" mixes counts and percentages",
		"release vllm --batches 50%,25%":     "batches never decrease", // also if there is nothing to release
		// The generation at the start is that of the kubeconfig's cluster.
		"status vllm --wait":          "--wait reads the API server itself: leave out --address",
		"status vllm --wait=0s":       "--wait 0s: want more than 0",
		"status vllm --wait=2h -w":    "--wait and --watch exclude each other",
		"status vllm -w --all":        "--all is for a status that is printed once",
		"status vllm --wait=2h --all": "--all is for a status that is printed once",
		// The page is on loopback, and no host means all addresses.
		"dashboard --listen 0.0.0.0:0":                              "is no loopback address: other machines would reach the page",
		"dashboard --listen :0":                                     "use 127.0.0.1 and ssh -L",
		"dashboard --listen 127.0.0.1":                              "want host:port such as 127.0.0.1:8080",
		"dashboard --link Board=javascript:alert(1)":                "want TITLE=URL such as Grafana=https://", // a browser would run it
		"dashboard --link https://grafana.example.com/?a=b":         "want TITLE=URL",
		"dashboard -A -n default":                                   "exclude each other",
		"dashboard vllm":                                            "takes no argument",
		"status vllm --address localhost:1 --tls-ca x --tls-cert x": "both --tls-cert and --tls-key",
		"status vllm --address localhost:1 --token-file x":          "--tls-ca", // a token travels over TLS only
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			got := runProgram(deadline(t), t, hosttest.Serve(t, hosttest.New()).Address, strings.Fields(line)...)
			assert.True(t, got.code == exit.Usage && strings.Contains(got.stderr, says),
				"exits with %d, want %d and %q:\n%s", got.code, exit.Usage, says, got.stderr)
		})
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	onInitialize := func(answer func(c *pb.BatchContext) error) func(*hosttest.Driver) {
		return func(d *hosttest.Driver) { d.OnInitialize = answer }
	}
	const release, routes = "release vllm --style canary --batches 25%,50%,100% ", "--service vllm --http-route vllm "
	for name, tc := range map[string]struct {
		args string
		fake func(*hosttest.Driver)
		code int
		says string // on stdout, or on stderr after an error
	}{
		"nothing to release is a success": {release, onInitialize(func(c *pb.BatchContext) error {
			c.State = pb.State_STATE_NOTHING_TO_RELEASE
			return nil
		}), exit.OK, "nothing to release"},
		"it stops after the last batch": {release + "--no-promote", nil, exit.OK, "waits to be promoted"},
		"canary is the default": {"release vllm --batches 25%,50%,100%", onInitialize(func(c *pb.BatchContext) error {
			if c.GetStyle() != pb.Style_STYLE_CANARY {
				return drivererr.Invalid(drivererr.FieldViolation{Field: "policy.style", Description: c.GetStyle().String()})
			}
			return nil
		}), exit.OK, "is complete"},
		"one canary group, then all": {"release vllm", nil, exit.OK, "batch 1/1 (1) is ready"},
		"each batch gets its share, which is reported": {
			release + routes + "--weights 10,50,100 --no-promote", nil, exit.OK, "sending 10% of the requests to the update revision",
		},
		"a driver that does not split requests is refused before the release starts": {
			release + routes, func(d *hosttest.Driver) { d.NoTraffic = true }, exit.Error,
			"cannot release default/vllm: the policy has traffic, but driver fake.lockstep.dev splits no requests: " +
				"it does not list CAPABILITY_TRAFFIC_WEIGHT. Leave it out, or use a driver that lists it [UNSUPPORTED]\n",
		},
		"the message names the workload and what to do": {
			"release other --style canary --batches 100%", nil, exit.Error,
			"cannot release default/other: there is no LeaderWorkerSet default/other [WORKLOAD_NOT_FOUND]\n  to list all: lockstep status -A",
		},
		"one line per field, named as the user gives it": {release, onInitialize(func(*pb.BatchContext) error {
			return drivererr.Invalid(
				drivererr.FieldViolation{Field: "policy.batches[1]", Description: "must not decrease"},
				drivererr.FieldViolation{Field: "policy.min_ready", Description: "must not be negative"})
		}), exit.Usage, "lockstep: cannot release default/vllm: the request is invalid [INVALID_REQUEST]\n" +
			"  --batches, number 2: must not decrease\n  --min-ready: must not be negative\n"},
		"the second abort changes nothing": {"abort vllm", func(d *hosttest.Driver) {
			d.Set(func(c *pb.BatchContext) { c.ReleaseId, c.State = "r1", pb.State_STATE_ROLLED_BACK })
		}, exit.OK, "nothing to do: release r1 is rolled back"},
		"there is no release to abort":                                          {"abort vllm", nil, exit.Error, "it has no release in flight, its state is holding"},
		"the reason is passed on":                                               {"abort vllm -m slow -o json", inFlight, exit.OK, `"endMessage":"slow"`},
		"the reason is passed on without a wait":                                {"abort vllm -m slow --no-wait -o json", inFlight, exit.OK, `"endMessage":"slow"`},
		"a promotion that is only recorded is not complete":                     {"promote vllm --no-wait -o json", inFlight, exit.OK, `"outcome":"recorded"`},
		"a rollback that is only recorded is not complete":                      {"abort vllm --no-wait -o json", inFlight, exit.OK, `"outcome":"recorded"`},
		"a workload without a release has a status":                             {"status vllm", nil, exit.OK, "State     holding (AtRest) held at rest\n"},
		"a host that was removed can't tell that nothing continues its release": {"status vllm", anothers(pb.State_STATE_READY), exit.OK, "argo-rollouts/default/vllm continues or ends this release. If it is gone: lockstep abort vllm --address"},
		"a newer template is not part of a release that is over": {"release vllm --release-id r1 --pause 1m", func(d *hosttest.Driver) {
			d.Set(func(c *pb.BatchContext) {
				c.ReleaseId, c.State, c.UpdateRevision, c.TemplateRevision = "r1", pb.State_STATE_COMPLETED, "bbbb", "cccc"
			})
		}, exit.Error, "cannot release default/vllm: release r1 is over, and revision cccc is not part of it\n  to release it: lockstep release vllm --address unix:"},
		"a template that appeared after nothing was released": {"release vllm --release-id r1", func(d *hosttest.Driver) {
			d.Set(func(c *pb.BatchContext) { c.ReleaseId, c.State = "r1", pb.State_STATE_NOTHING_TO_RELEASE })
		}, exit.Error, "revision bbbb is not part of it\n  to release it: lockstep release vllm"},
		"the id of a release that is over succeeds once more": {"release vllm --release-id r1", func(d *hosttest.Driver) {
			d.Set(func(c *pb.BatchContext) {
				c.ReleaseId, c.State, c.UpdateRevision = "r1", pb.State_STATE_COMPLETED, "bbbb"
			})
		}, exit.OK, "release r1 is complete"},
		"no second host continues a release": {"release vllm --release-id r1", anothers(pb.State_STATE_READY), exit.Error,
			"cannot release default/vllm: argo-rollouts/default/vllm drives release r1\n  what to do: use that host, or if it is gone: lockstep abort vllm --address"},
		"a new release of another host's workload":    {"release vllm", anothers(pb.State_STATE_READY), exit.Error, "end it with argo-rollouts/default/vllm"},
		"a failed release of a host that was removed": {"status vllm", anothers(pb.State_STATE_FAILED), exit.OK, "If it is gone: lockstep abort vllm --address"},
		"there is no such workload":                   {"status other", nil, exit.Error, "[WORKLOAD_NOT_FOUND]"},
		"the workload is already under hold":          {"adopt vllm", nil, exit.OK, "default/vllm: already under hold; nothing changed\n"},
		"the hold is removed":                         {"disown vllm", nil, exit.OK, "default/vllm: disowned"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := hosttest.New()
			if tc.fake != nil {
				tc.fake(fake)
			}
			got := runProgram(deadline(t), t, hosttest.Serve(t, fake).Address, strings.Fields(tc.args)...)
			said := got.stdout
			if tc.code != exit.OK {
				said = got.stderr
			}
			assert.True(t, got.code == tc.code && strings.Contains(said, tc.says),
				"lockstep %s exits with %d, want %d and %q:\n%s%s", tc.args, got.code, tc.code, tc.says, got.stdout, got.stderr)
			assert.False(t, tc.code == exit.Error && strings.Count(got.stderr, "lockstep: ") != 1, "want one error on stderr:\n%s", got.stderr)
		})
	}
}

// A revision that runs unreleased is released: the driver then records it, and its alert ends. Otherwise the command makes no release of nothing.
func TestReleaseOfWhatRuns(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		object := metav1.PartialObjectMetadata{ObjectMeta: lwstest.InPhase(t, record.Promoted).ObjectMeta}
		object.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
		_ = json.NewEncoder(w).Encode(object)
	}))
	t.Cleanup(api.Close)
	config := writeKubeconfigOf(t, api.URL)
	for reason, begins := range map[string]bool{"Promoted": false, "UnreleasedRevision": true} {
		begun := 0
		fake := hosttest.New()
		fake.Set(func(c *pb.BatchContext) {
			c.ReleaseId, c.State, c.Reason, c.UpdateRevision, c.TemplateRevision = "r1", pb.State_STATE_COMPLETED, reason, "bbbb", "cccc"
			c.Groups = []*pb.Group{{Role: pb.GroupRole_GROUP_ROLE_STABLE, Leader: "vllm-0", Revision: "cccc", Pods: 1}}
			c.ObservedGeneration = 9
		})
		fake.OnInitialize = func(c *pb.BatchContext) error {
			begun, c.State = begun+1, pb.State_STATE_NOTHING_TO_RELEASE
			return nil
		}
		var stdout, stderr buffer
		p := Program{Args: []string{"release", "vllm", "--address", hosttest.Serve(t, fake).Address, "--kubeconfig", config}, Stdout: &stdout, Stderr: &stderr}
		code := p.Run(deadline(t))
		assert.True(t, code == exit.OK && (begun > 0) == begins && strings.Contains(stdout.String(), "nothing to release"),
			"%s: exit code %d, %d releases begun:\n%s%s", reason, code, begun, stdout.String(), stderr.String())
	}
}

func TestStatusWithoutDriver(t *testing.T) {
	t.Parallel()
	server := hosttest.Serve(t, hosttest.New())
	server.Stop()
	got := runProgram(deadline(t), t, server.Address, "status", "vllm")
	assert.True(t, got.code == exit.Error && strings.Contains(got.stderr, "cannot reach the driver") && strings.Contains(got.stderr, "[UNAVAILABLE]\n  what to do: check that a driver runs"),
		"status without a driver exits with %d:\n%s", got.code, got.stderr)
}

// overtaken changes the workload's template just before each Finalize.
type overtaken struct{ *hosttest.Driver }

func (d overtaken) Finalize(ctx context.Context, req *pb.FinalizeRequest) (*pb.FinalizeResponse, error) {
	d.Set(func(c *pb.BatchContext) {
		c.TemplateRevision, c.UpdateRevision, c.State = "cccc", "cccc", pb.State_STATE_HOLDING
	})
	return d.Driver.Finalize(ctx, req)
}

func TestPromoteRefusesChangedTemplate(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"promote", "vllm"}, {"promote", "vllm", "--no-wait"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			fake := hosttest.New()
			inFlight(fake)
			got := runProgram(deadline(t), t, hosttest.Serve(t, overtaken{fake}).Address, args...)
			assert.True(t, got.code == exit.Error && strings.Contains(got.stderr, "lockstep status vllm"),
				"exit code %d, want %d and what to do:\n%s", got.code, exit.Error, got.stderr)
			state := fake.Context().GetState()
			assert.Equal(t, pb.State_STATE_HOLDING, state, "the new template's release is %s, want it unchanged", state)
		})
	}
}

// finalized records whether the calls of Finalize have force.
type finalized struct {
	*hosttest.Driver

	forced chan bool
}

func (d finalized) Finalize(ctx context.Context, req *pb.FinalizeRequest) (*pb.FinalizeResponse, error) {
	d.forced <- req.GetForce()
	return d.Driver.Finalize(ctx, req)
}

// The command that ends the release of a host that is gone does not reduce capacity: only --force does.
func TestEndsAnotherHostsRelease(t *testing.T) {
	t.Parallel()
	for line, force := range map[string]bool{
		"abort vllm --ignore-owner": false, "abort vllm --ignore-owner --no-wait": false, "promote vllm --ignore-owner": false,
		"abort vllm --force": true, "abort vllm --force --no-wait": true,
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			fake := finalized{hosttest.New(), make(chan bool, 100)}
			anothers(pb.State_STATE_READY)(fake.Driver)
			address, args := hosttest.Serve(t, fake).Address, strings.Fields(line)
			refused := runProgram(deadline(t), t, address, args[:2:2]...)
			assert.True(t, refused.code == exit.Error && len(fake.forced) == 0 && strings.Contains(refused.stderr, " --ignore-owner"),
				"lockstep %s exits with %d:\n%s", args[0], refused.code, refused.stderr)
			got := runProgram(deadline(t), t, address, args...)
			assert.True(t, got.code == exit.OK && <-fake.forced == force, "exits with %d, or force is not %t:\n%s", got.code, force, got.stderr)
		})
	}
}

func TestReleaseJSON(t *testing.T) {
	t.Parallel()
	got := runProgram(deadline(t), t, hosttest.Serve(t, hosttest.New()).Address, with(canary, "-o", "json")...)
	require.Equal(t, exit.OK, got.code, "exit code:\n%s", got.stderr)
	var events []string
	for line := range strings.Lines(got.stdout) {
		var d view.Document
		require.NoError(t, json.Unmarshal([]byte(line), &d), "line %q", line)
		if d.Event != "progress" {
			events = append(events, d.Event)
		}
	}
	want := []string{
		"started", "batch-started", "batch-ready", "batch-started", "batch-ready", "batch-started", "batch-ready",
		"promoting", "finished",
	}
	assert.Empty(t, cmp.Diff(want, events), "events: -want, +got")
	assert.Contains(t, got.stderr, "is complete", "stderr does not say so")
}

func TestAddressNeedsNoKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	address := hosttest.Serve(t, hosttest.New()).Address
	for _, args := range [][]string{{"status", "vllm"}, {"status", "vllm", "-n", "default"}} {
		var stdout, stderr buffer
		p := Program{Args: append(args, "--address", address), Stdout: &stdout, Stderr: &stderr}
		if code := p.Run(deadline(t)); code != exit.OK || !strings.Contains(stdout.String(), "default/vllm") {
			t.Errorf("%q: exit code %d\n%s%s", args, code, stdout.String(), stderr.String())
		}
	}
}

func TestStatusWatch(t *testing.T) {
	t.Parallel()
	fake := hosttest.New()
	address := hosttest.Serve(t, fake).Address
	ctx, interrupt := context.WithCancel(deadline(t))
	defer interrupt()
	var stdout, stderr buffer
	p := Program{
		Args:   []string{"status", "vllm", "-w", "-o", "json", "--address", address, "--kubeconfig", writeKubeconfig(t)},
		Stdout: &stdout, Stderr: &stderr,
	}
	code := make(chan int, 1)
	go func() { code <- p.Run(ctx) }()
	await.True(t, "the first state is printed", func() bool { return strings.Count(stdout.String(), "\n") == 1 })
	fake.Set(func(c *pb.BatchContext) { c.State = pb.State_STATE_UPGRADING })
	await.True(t, "a change is printed", func() bool { return strings.Contains(stdout.String(), "STATE_UPGRADING") })
	interrupt()
	if got := <-code; got != exit.OK {
		t.Errorf("exit code = %d, want 0:\n%s", got, stderr.String())
	}
}

// Without a release the watch of all workloads is idle, and retries nothing.
func TestStatusWatchIdle(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(deadline(t))
	defer interrupt()
	var stdout buffer
	p := Program{
		Args:   []string{"status", "-w", "-o", "json", "--address", hosttest.Serve(t, hosttest.New()).Address, "--kubeconfig", writeKubeconfig(t)},
		Stdout: &stdout, Stderr: &buffer{},
	}
	code := make(chan int, 1)
	go func() { code <- p.Run(ctx) }()
	await.True(t, "the first event is printed", func() bool { return strings.Contains(stdout.String(), "\n") })
	interrupt()
	if got := <-code; got != exit.OK || !strings.HasPrefix(stdout.String(), `{"event":"idle",`) {
		t.Errorf("exit code %d:\n%s", got, stdout.String())
	}
}

func runInside(t *testing.T, run func(context.Context) error, args ...string) ran {
	t.Helper()
	var stdout, stderr buffer
	p := Program{
		Args: append(args, "--kubeconfig", writeKubeconfig(t)), Stdout: &stdout, Stderr: &stderr,
		NewDriver: func(_ *rest.Config, settings lwsdriver.Options) (server.Driver, error) {
			assert.True(t, settings.Namespace == "default" && settings.Workload.String() == "default/vllm",
				"the driver is for workload %q in namespace %q, want default/vllm only", settings.Workload, settings.Namespace)
			assert.Equal(t, args[0] == "status", settings.ReadOnly, "%s has a driver with read only", args[0])
			d := hosttest.New()
			return engine{d, d, run}, nil
		},
	}
	code := p.Run(deadline(t))
	return ran{code: code, stdout: stdout.String(), stderr: stderr.String()}
}

// The tests with a driver inside are not parallel: its logger is also client-go's, which is global.

func TestCommandsWithDriverInside(t *testing.T) { //nolint:paralleltest // See above.
	for _, args := range [][]string{canary, {"status", "vllm"}, {"adopt", "vllm"}, {"disown", "vllm"}} {
		if got := runInside(t, untilEnd, args...); got.code != exit.OK || args[0] == "release" && !strings.Contains(got.stdout, "is complete") {
			t.Errorf("%s: exit code %d\n%s%s", args, got.code, got.stdout, got.stderr)
		}
	}
}

func TestReleaseReturnsErrorOfDriverInside(t *testing.T) { //nolint:paralleltest // See above.
	got := runInside(t, func(context.Context) error { return os.ErrPermission }, with(canary, "--pause", "1h")...)
	assert.True(t, got.code == exit.Error && strings.Contains(got.stderr, "run driver: permission denied"),
		"exit code %d, want the driver's error:\n%s", got.code, got.stderr)
}

func TestCommandsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err)
	for _, cmd := range allCommands(&connect.Options{}) {
		if link := "](reference-cli.md#lockstep-" + cmd.Name() + ")"; cmd.Runnable() && !strings.Contains(string(text), link) {
			t.Errorf("docs/cli.md has no link to lockstep %s", cmd.Name())
		}
	}
}

func TestStatusInterrupted(t *testing.T) {
	t.Parallel()
	fake := hosttest.New()
	fake.OnCalculate = func() error {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "connection refused")
	}
	ctx, interrupt := context.WithCancel(deadline(t))
	defer interrupt()
	go func() {
		_ = fake.Await(ctx, func(_ *pb.BatchContext, calls []string) bool { return len(calls) > 0 })
		interrupt()
	}()
	got := runProgram(ctx, t, hosttest.Serve(t, fake).Address, "status", "vllm")
	assert.True(t, got.code == exit.Interrupted && strings.Contains(got.stderr, "interrupted"),
		"exit code = %d, want %d:\n%s", got.code, exit.Interrupted, got.stderr)
}

// silent is a driver that reports no workload.
type silent struct {
	*hosttest.Driver

	asked chan struct{}
}

func (s silent) WatchWorkloads(_ *pb.WatchWorkloadsRequest, stream grpc.ServerStreamingServer[pb.WatchWorkloadsResponse]) error {
	close(s.asked)
	<-stream.Context().Done()
	return stream.Context().Err()
}

func TestListInterrupted(t *testing.T) {
	t.Parallel()
	driver := silent{hosttest.New(), make(chan struct{})}
	address := hosttest.Serve(t, driver).Address
	ctx, interrupt := context.WithCancel(deadline(t))
	defer interrupt()
	go func() {
		<-driver.asked
		interrupt()
	}()
	if got := runProgram(ctx, t, address, "status"); got.code != exit.Interrupted || !strings.Contains(got.stderr, "interrupted") {
		t.Errorf("exit code %d, want %d:\n%s", got.code, exit.Interrupted, got.stderr)
	}
}

// Text that anyone may have written into the cluster moves nothing on a terminal.
func TestControlCharactersOfTheCluster(t *testing.T) {
	t.Parallel()
	const hostile = "held\x1b[2J\r\u009b2J\u202e\u2066 at rest"
	for _, tt := range []struct {
		args []string
		code int
	}{
		{[]string{"status"}, exit.OK}, {[]string{"status", "vllm"}, exit.OK}, {[]string{"status", "vllm", "-o", "yaml"}, exit.OK},
		{[]string{"abort", "vllm"}, exit.OK}, {[]string{"adopt", "vllm"}, exit.OK}, {canary, exit.Error},
	} {
		fake := hosttest.New()
		fake.Set(func(c *pb.BatchContext) {
			c.Reason, c.Message, c.EndMessage, c.Owner, c.ReleaseId = hostile, hostile, hostile, "lockstep-cli/"+hostile, "r1"
			c.Groups = []*pb.Group{{Leader: hostile, Pod: hostile, Reason: hostile, Message: hostile, Pods: 2, Role: pb.GroupRole_GROUP_ROLE_STABLE}}
		})
		fake.OnInitialize = func(*pb.BatchContext) error {
			return drivererr.New(pb.ErrorReason_ERROR_REASON_REJECTED, "webhook %s", hostile)
		}
		got := runProgram(deadline(t), t, hosttest.Serve(t, fake).Address, tt.args...)
		if text := got.stdout + got.stderr; strings.ContainsAny(text, "\x1b\r\u009b\u202e\u2066") || got.code != tt.code {
			t.Errorf("lockstep %q exits with %d, want %d: %q", tt.args, got.code, tt.code, text)
		}
	}
}
