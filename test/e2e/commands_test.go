// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/terminal"
)

// command is a `lockstep` that runs.
type command struct {
	w      *workload
	cmd    *exec.Cmd
	output bytes.Buffer
}

// begin starts a command about a workload. It is killed when the test ends.
func (w *workload) begin(args ...string) *command {
	w.t.Helper()
	binary := driver.Path(w.t)
	c := &command{w: w, cmd: exec.CommandContext(w.t.Context(), binary, w.toDriver(args...)...)}
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	require.NoError(w.t, c.cmd.Start())
	return c
}

// pausedRelease begins a release of two batches that pauses after the first one, and waits for that.
func (w *workload) pausedRelease(args ...string) *command {
	w.t.Helper()
	c := w.begin(append([]string{"release", "model", "--batches", "50%,100%", "--pause", "1h"}, args...)...)
	w.awaitBatchReady(0)
	return c
}

func (w *workload) awaitBatchReady(batch int32) *pb.BatchContext {
	w.t.Helper()
	return w.await("the batch is ready", func(c *pb.BatchContext) bool {
		return c.GetState() == pb.State_STATE_READY && c.CurrentBatch != nil && c.GetCurrentBatch() == batch
	})
}

// mustExit fails unless the command ends with a code and words.
func (c *command) mustExit(code int, words ...string) {
	c.w.t.Helper()
	_ = c.cmd.Wait()
	if got := c.cmd.ProcessState.ExitCode(); got != code {
		c.w.t.Errorf("%v: exit code %d, want %d\n%s", c.cmd.Args[1:], got, code, &c.output)
	}
	c.w.mustContain(c.output.String(), words...)
}

// Each command of a release on the real controllers, while another process runs `lockstep release`.
//
// Proves: Commands and events while `lockstep release` runs.
func TestCommands(t *testing.T) {
	t.Parallel()
	cases := map[string]func(w *workload){
		"release": func(w *workload) {
			w.begin("release", "model", "--batches", "50%,100%").mustExit(0, "batch 1/2 (50%) is ready", "batch 2/2 (100%) is ready", "is complete")
			w.mustRun("v2")
		},
		"promote": func(w *workload) {
			running := w.pausedRelease()
			w.begin("promote", "model", "-m", "good enough").mustExit(0, "is complete")
			running.mustExit(0, "is complete")
			assert.Equal(w.t, "good enough", w.awaitState(pb.State_STATE_COMPLETED).GetEndMessage(), "the message")
			w.mustRun("v2")
		},
		"abort": func(w *workload) {
			before := w.stablePods()
			running := w.pausedRelease()
			w.begin("abort", "model", "-m", "too slow").mustExit(0, "was rolled back")
			running.mustExit(4, "was rolled back")
			w.begin("history", "model").mustExit(0, "too slow")
			w.sameGroups(before)
		},
		"abort-of-a-promotion": func(w *workload) {
			w.pausedRelease("--style", "partition").mustEnd(os.Interrupt, 130)
			w.begin("promote", "model", "--no-wait").mustExit(0, "recorded: promote")
			w.begin("abort", "model").mustExit(0, "was rolled back")
			w.mustRun("v1")
		},
		"interrupt": func(w *workload) {
			w.pausedRelease("--release-id", "r1").mustEnd(os.Interrupt, 130, "to resume:", "to promote:", "to abort:", "--release-id r1")
			assert.Equal(w.t, "r1", w.awaitBatchReady(0).GetReleaseId(), "the release is now")
			w.begin("release", "model", "--batches", "50%,100%", "--release-id", "r1").mustExit(0, "continuing release r1", "is complete")
			w.mustRun("v2")
		},
		"kill": func(w *workload) {
			w.pausedRelease().mustEnd(os.Kill, -1)
			w.begin("release", "model", "--batches", "50%,100%").mustExit(0, "continuing release", "is complete")
			w.mustRun("v2")
		},
		"template": func(w *workload) {
			running := w.pausedRelease()
			second := w.awaitBatchReady(0).GetUpdateRevision()
			w.edit(image("v3"))
			w.await("the first batch is ready at v3", func(c *pb.BatchContext) bool {
				return c.GetState() == pb.State_STATE_READY && c.GetUpdateRevision() != second && c.GetCurrentBatch() == 0
			})
			w.begin("promote", "model").mustExit(0)
			running.mustExit(0, "the template changed from revision "+second, "starting again at batch 1")
			w.mustRun("v3")
		},
		"no-promote": func(w *workload) {
			w.begin("release", "model", "--batches", "100%", "--no-promote").mustExit(0, "waits to be promoted")
			w.begin("promote", "model").mustExit(0, "is complete")
			w.mustRun("v2")
		},
		"undo": func(w *workload) {
			w.begin("release", "model", "--batches", "100%").mustExit(0)
			w.begin("undo", "model").mustExit(0, "it waits for a release")
			w.mustRun("v2")
			w.begin("release", "model", "--batches", "100%").mustExit(0, "is complete")
			w.mustRun("v1")
		},
		"undo-at-once": func(w *workload) {
			w.begin("release", "model", "--batches", "100%").mustExit(0)
			w.begin("undo", "model").mustExit(0, "it waits for a release")
			w.begin("release", "model", "--batches", "0").mustExit(0, "is complete")
			w.mustRun("v1")
		},
		"another-host": func(w *workload) {
			w.initialize("r1", quarters())
			refused := w.begin("release", "model", "--batches", "100%")
			refused.mustExit(1, "[RELEASE_IN_PROGRESS]", "end it with e2e/", "lockstep abort model", "--ignore-owner")
			refused.mustLack("--release-id")
			w.begin("release", "model", "--release-id", "r1").mustExit(1, "drives release r1", "--ignore-owner")
			w.begin("abort", "model").mustExit(1, "drives release r1", "--ignore-owner")
			w.begin("abort", "model", "--ignore-owner").mustExit(0, "was rolled back")
			w.mustRun("v1")
		},
		"failure": func(w *workload) {
			w.edit(withBehavior(cluster.BehaviorNeverReady))
			deadline := []string{"release", "model", "--batches", "50%,100%", "--progress-deadline", "2s", "--release-id", "r1"}
			w.begin(deadline...).mustExit(3, "ProgressDeadlineExceeded", "to abort:")
			w.begin(append(deadline, "--on-failure", "rollback")...).mustExit(4, "the release failed (ProgressDeadlineExceeded)")
			assert.NotEmpty(w.t, w.awaitState(pb.State_STATE_ROLLED_BACK).GetEndMessage(), "the context does not say why it was rolled back")
			w.mustRun("v1")
		},
		"failure-then-other-batches": func(w *workload) {
			w.edit(withBehavior(cluster.BehaviorNeverReady))
			failed := w.begin("release", "model", "--progress-deadline", "2s")
			failed.mustExit(3, "ProgressDeadlineExceeded")
			failed.mustLack("level=")
			other := w.begin("release", "model", "--batches", "100%")
			other.mustExit(1, "lockstep abort model", "&& lockstep release model", "--batches 100%")
			other.mustLack("release_id", "same flags", "lws.lockstep.dev", "ProgressDeadlineExceeded")
			abort := w.begin("abort", "model")
			abort.mustExit(0, "was rolled back")
			abort.mustLack("canary group", "ProgressDeadlineExceeded")
		},
		"nothing": func(w *workload) {
			w.begin("release", "model", "--release-id", "r1").mustExit(0, "is complete")
			// The command compares what the driver answers with the object of the API server.
			w.mustPrint([]string{"nothing to release"}, "release", "model")
			w.mustPrint([]string{"nothing to release"}, "release", "model", "--release-id", "r2")
			w.mustPrint([]string{"nothing to release"}, "release", "model", "--address", w.driver.Address())
			w.begin("release", "model", "--release-id", "r1").mustExit(0, "is complete")
			assert.Equal(w.t, "r1", w.awaitState(pb.State_STATE_COMPLETED).GetReleaseId(), "the release is now")
		},
		"disown": func(w *workload) {
			running := w.pausedRelease()
			w.begin("disown", "model").mustExit(1, "abort")
			w.begin("abort", "model").mustExit(0)
			running.mustExit(4)
			w.begin("disown", "model").mustExit(0)
			w.awaitRolled() // the adoption holds what runs then
			w.begin("adopt", "model").mustExit(0)
		},
	}
	for name, course := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newEnv(t).adopt(model("model", 2, 2))
			w.edit(image("v2"))
			course(w)
		})
	}
}

// mustLack fails if the command has printed one of the words.
func (c *command) mustLack(words ...string) {
	c.w.t.Helper()
	for _, text := range words {
		if strings.Contains(c.output.String(), text) {
			c.w.t.Errorf("%v prints %q:\n%s", c.cmd.Args[1:], text, &c.output)
		}
	}
}

// mustEnd sends a signal, and fails unless the command ends with a code and words.
func (c *command) mustEnd(signal os.Signal, code int, words ...string) {
	c.w.t.Helper()
	require.NoError(c.w.t, c.cmd.Process.Signal(signal))
	c.mustExit(code, words...)
}

// `lockstep debug record` records a release until it ends, and `lockstep debug replay` makes every decision again.
//
// Proves: `lockstep debug record` and `replay`: every decision of a release is made again.
func TestDebugRecord(t *testing.T) {
	e := newEnv(t)
	w := e.adopt(model("model", 2, 1))
	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	path := driver.Path(t)
	recording, err := os.Create(filepath.Join(t.TempDir(), "recording.jsonl"))
	require.NoError(t, err)
	defer recording.Close()
	cmd := exec.Command(path, "debug", "record", "model", "--namespace", w.namespace, "--kubeconfig", driver.Kubeconfig(t, w.cluster))
	cmd.Stdout, cmd.Stderr = recording, os.Stderr
	recorder, err := child.Run(cmd)
	require.NoError(t, err)
	defer recorder.End(syscall.SIGKILL, await.Patience)
	read := func() string {
		raw := files.Read(t, recording.Name())
		return string(raw)
	}
	await.Nil(t, "the first decision is recorded", func(context.Context) error {
		if read() == "" {
			return errors.New("the recording is empty")
		}
		return nil
	})
	w.upgrade("r1", 0)
	w.awaitState(pb.State_STATE_READY)
	w.finalize("r1", promote)
	select {
	case <-recorder.Exited:
	case <-t.Context().Done():
		t.Fatal("`lockstep debug record` does not end with the release")
	}
	assert.Zero(t, cmd.ProcessState.ExitCode(), "`lockstep debug record`: exit code")
	for _, words := range []string{`"STATE_HOLDING"`, `"STATE_READY"`, `"STATE_COMPLETED"`} {
		assert.Contains(t, read(), words, "the recording does not contain %s", words)
	}
	assert.NotContains(t, read(), "example.com/model:v2", "the recording contains the image: templates are not redacted")
	out, err := exec.CommandContext(t.Context(), path, "debug", "replay", recording.Name()).CombinedOutput()
	assert.True(t, err == nil && strings.Contains(string(out), "all as recorded"), "%v: %s", err, out)
}

// viewer creates a service account with read-only permissions in this namespace, and returns its kubeconfig.
func (e *env) viewer() string {
	e.t.Helper()
	return e.account("viewer", rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"}})
}

// watch starts `lockstep watch` on a terminal.
func (e *env) watch(args ...string) *terminal.Terminal {
	e.t.Helper()
	path := driver.Path(e.t)
	return terminal.Start(e.t, exec.CommandContext(e.t.Context(), path, append([]string{"watch"}, args...)...), 120, 36)
}

// A user with read-only permissions sees a release with its broken group, its traffic and its end, and the next release.
//
// Proves: `lockstep watch`.
func TestWatch(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("vllm", 4, 2))
	w.expose()
	viewer := e.viewer()
	p := e.watch("--namespace", e.namespace, "--kubeconfig", viewer)
	p.AwaitWords("no release is running, workloads under hold: 1")

	w.edit(image("v2"), withBehavior(cluster.BehaviorImagePull))
	routed := quarters()
	routed.Traffic = &pb.TrafficPolicy{StableService: "vllm-http", Ingresses: []string{"vllm"}}
	w.initialize("r1", routed)
	p.AwaitWords("Workload  "+e.namespace+"/"+w.name, "r1, Canary", "batch 1/3 (25%)", "batch 2/3 (50%)", "batch 3/3 (100%)")
	_, err := w.tryUpgrade("r1", 0, nil)
	require.NoError(t, err)
	_, err = w.driver.SetWeight(t.Context(), &pb.SetWeightRequest{Workload: w.ref(), ReleaseId: "r1", Weight: 25})
	require.NoError(t, err)
	p.AwaitWords("1/3 (25%): 0/1 groups ready", "4/4 ready", "✖ ImagePullBackOff", "canary 0%, stable 100% of requests (routed, 25% requested)")
	canary := w.context().GetCanaryWorkload()
	e.eventually("the worker exists, too", func(context.Context) error {
		if pods := len(w.podsOf(canary)); pods != 2 {
			return fmt.Errorf("%d pods", pods)
		}
		return nil
	})
	w.patchPods(canary, heal, 0)
	p.AwaitWords("1/3 (25%): 1/1 groups ready", "canary 25%, stable 75% of requests (routed)")
	w.finalize("r1", rollback)
	p.AwaitWords(w.name+"  rolled back: ", "no release is running")

	w.edit(image("v3"), func(s *lws.LeaderWorkerSet) {
		delete(s.Spec.LeaderWorkerTemplate.WorkerTemplate.Annotations, cluster.AnnotationBehavior)
	})
	w.initialize("r2", policy("50%", "100%"))
	w.upgrade("r2", 0)
	p.AwaitWords("r2, Canary", "1/2 (50%): 2/2 groups ready")
	p.Resize(40, 10)
	p.Await("a status that is cut", func(text string) bool { return strings.HasSuffix(text, " more lines") })
	p.Resize(120, 36)
	w.finalize("r2", promote)
	p.AwaitWords(w.name + "  completed: ")
	p.Signal(syscall.SIGINT)
	code, text := p.Exit()
	assert.Zero(t, code, "exit code %d; what stays on the terminal:\n%s", code, text)
	w.mustBeIdle()

	refused := e.watch("-A", "--kubeconfig", viewer)
	if code, text := refused.Exit(); code != 1 || !strings.Contains(strings.ReplaceAll(text, "\n", ""), "[FORBIDDEN]") { // the terminal wraps lines
		t.Errorf("all namespaces with the permissions of one: exit code %d:\n%s", code, text)
	}
}

// The command reports that the driver is down, and continues once it has restarted.
//
// Proves: `lockstep watch`.
func TestWatchDriver(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("vllm", 2, 1))
	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	p := e.watch("vllm", "--namespace", e.namespace, "--address", e.driver.Address())
	p.AwaitWords("holding (")
	e.driver.Kill()
	p.AwaitWords("lost the driver, retrying")
	e.driver.Restart()
	w.upgrade("r1", 0)
	p.AwaitWords("reconnected to the driver", "1/2 (50%): 1/1 groups ready")
	p.Signal(syscall.SIGINT)
	code, text := p.Exit()
	assert.Zero(t, code, "exit code %d after Ctrl-C:\n%s", code, text)
	w.finalize("r1", rollback)
	w.mustBeIdle()
}
