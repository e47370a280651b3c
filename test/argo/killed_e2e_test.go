// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// phase is a phase of a release in which a process is killed.
type phase struct {
	name string
	pods change
	// reach advances the release close to the phase; strike, right before the kill, into it. Optional.
	reach, strike func(e *env)
	// end checks how the release continues.
	end func(e *env, before map[string]types.UID)
}

func toPause(e *env) { e.edit("v2"); e.awaitPause(1) }

func released(e *env, _ map[string]types.UID) { e.MustRest("v2"); e.awaitRest("v2") }

var phases = []phase{
	{
		name: "waiting-for-groups",
		reach: func(e *env) {
			e.edit("v2", podsWith(cluster.AnnotationBehavior, cluster.BehaviorNeverReady))
			e.awaitCanary()
		},
		end: func(e *env, before map[string]types.UID) {
			e.heal()
			e.awaitPause(1)
			e.mustHave("v2", 0, 1)
			e.same(before)
			e.argo("promote", "--full", name)
			released(e, before)
		},
	},
	{
		name: "paused", reach: toPause,
		end: func(e *env, before map[string]types.UID) {
			e.argo("promote", name)
			e.awaitPause(3)
			e.mustHave("v2", 0, 2)
			e.same(before)
			e.argo("promote", name)
			released(e, before)
		},
	},
	{
		name: "promoting", pods: podsWith(cluster.AnnotationStartup, "2s"),
		reach: func(e *env) {
			toPauseAgain(e)
			e.argo("promote", name)
			e.awaitStep(5)
		},
		end: released,
	},
	{
		name: "promoted-in-full", pods: podsWith(cluster.AnnotationStartup, "1s"), reach: toPause,
		strike: func(e *env) { e.argo("promote", "--full", name) },
		end:    released,
	},
	{
		name: "aborted", pods: podsWith(cluster.AnnotationTermination, "4s"), reach: toPause,
		strike: func(e *env) { e.argo("abort", name) },
		end: func(e *env, before map[string]types.UID) {
			e.awaitAborted("v1")
			e.same(before)
		},
	},
	{
		name: "deleted", pods: podsWith(cluster.AnnotationTermination, "2s"), reach: toPause,
		strike: func(e *env) { e.delete(name) },
		end: func(e *env, before map[string]types.UID) {
			e.MustRest("v1") // LeaderWorkerSet would roll out v2
			e.edit("v1")
			e.Eventually("the workload is the user's again", func(ctx context.Context) error { return e.disowned(ctx, "v1") })
			e.same(before)
		},
	},
}

// Whichever process is killed in whichever phase, the release continues where it was. All phases are reached before a kill,
// so that each process is killed once.
//
// Proves (test, controller): Argo: deletion; analysis; the controller is killed in each phase.
// Proves: Argo: each plugin is killed in each phase.
func TestKilled(t *testing.T) {
	c := cluster.Shared(t)
	for _, victim := range []struct {
		name string
		kill func(t *testing.T)
	}{
		{"controller", func(t *testing.T) { killController(t, c) }},
		{"step-plugin", func(t *testing.T) { killPlugins(t, c, stepPlugin) }},
		{"traffic-router", func(t *testing.T) { killPlugins(t, c, router) }},
	} {
		t.Run(victim.name, func(t *testing.T) {
			m := newMeeting(len(phases))
			for _, p := range phases {
				t.Run(p.name, func(t *testing.T) {
					t.Parallel()
					leave := sync.OnceFunc(m.arrived.Done)
					defer leave()
					e := newRelease(t, quarters, p.pods)
					before := e.Identities()
					p.reach(e)
					m.strike(func() {
						if p.strike != nil {
							p.strike(e)
						}
					})
					leave()
					m.await(func(strike func()) {
						strike()
						victim.kill(t)
					})
					p.end(e, before)
				})
			}
		})
	}
}

// meeting is a barrier at which releases wait for each other.
type meeting struct {
	arrived sync.WaitGroup
	acted   sync.Once
	mu      sync.Mutex
	strikes []func()
}

func newMeeting(n int) *meeting {
	m := &meeting{}
	m.arrived.Add(n)
	return m
}

// strike registers f, to be called once all have arrived.
func (m *meeting) strike(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.strikes = append(m.strikes, f)
}

// await returns once all have arrived and, in one of them, act was called, which calls all strikes.
func (m *meeting) await(act func(strike func())) {
	m.arrived.Wait()
	m.acted.Do(func() {
		act(func() {
			for _, f := range m.strikes {
				f()
			}
		})
	})
}

// breakCanary makes the canary's pods unready.
func (e *env) breakCanary() {
	e.T.Helper()
	raw := []byte(`{"metadata": {"annotations": {"` + cluster.AnnotationBehavior + `": "` + cluster.BehaviorNeverReady + `"}}}`)
	pods, err := e.Pods(e.T.Context(), "")
	for i := range pods {
		if err == nil && pods[i].Labels[lws.SetNameLabelKey] != e.Name {
			_, err = e.Kube.CoreV1().Pods(e.Namespace).Patch(e.T.Context(), pods[i].Name, types.MergePatchType, raw, metav1.PatchOptions{})
		}
	}
	assert.NoError(e.T, err)
}

// heal lets the canary's pods become ready, also later ones.
func (e *env) heal() {
	raw := []byte(`{"metadata": {"annotations": {"` + cluster.AnnotationBehavior + `": null}}}`)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			pods, err := e.Pods(ctx, "")
			if err != nil {
				return
			}
			for i := range pods {
				if pods[i].Annotations[cluster.AnnotationBehavior] != "" {
					_, _ = e.Kube.CoreV1().Pods(e.Namespace).Patch(ctx, pods[i].Name, types.MergePatchType, raw, metav1.PatchOptions{})
				}
			}
		}, 100*time.Millisecond)
	})
	e.T.Cleanup(func() { cancel(); done.Wait() })
}

// A promotion in full is about the template that the user saw: another one, which arrives while no controller runs, has its own steps.
//
// It is not parallel: the controller is that of all tests.
//
// Proves: Safety rule 11, Argo: undo, edits and backups while the Rollout is invalid, deleted or unattended.
func TestEditedAfterPromoteFullWhileDown(t *testing.T) {
	for _, test := range []struct{ name, flag string }{{"promote-full", "--full"}, {"skip-all-steps", "--skip-all-steps"}} {
		t.Run(test.name, func(t *testing.T) {
			e := newRelease(t, quarters, slow())
			before := e.Identities()
			e.edit("v2")
			e.awaitPause(1)
			require.NoError(t, e.Cluster.KillComponent(cluster.Argo))
			e.argo("promote", test.flag, name)
			e.edit("v3")
			require.NoError(t, e.Cluster.StartComponent(t.Context(), cluster.Argo))
			e.awaitFirstStep("v3", before)
			e.argo("promote", "--full", name)
			e.awaitRest("v3")
		})
	}
}

// suspension is longer than a Lease lasts, and than watches wait for a sign of life.
const suspension = time.Minute

// suspended lists what users do while the host of a release is suspended, and what must be true afterwards.
var suspended = []struct {
	name      string
	meanwhile func(e *env)
	end       func(e *env, before map[string]types.UID)
}{
	{
		name: "aborted", meanwhile: func(e *env) { e.argo("abort", name) },
		end: func(e *env, before map[string]types.UID) { e.awaitAborted("v1"); e.same(before) },
	},
	{
		name: "promoted-while-broken",
		meanwhile: func(e *env) {
			e.breakCanary()
			e.argo("promote", name)
		},
		end: func(e *env, before map[string]types.UID) {
			e.awaitSaid(name, "0 of 1 groups ready", "its readiness probe does not succeed")
			e.same(before)
			e.heal()
			released(e, before)
		},
	},
	{
		name: "edited", meanwhile: func(e *env) { e.edit("v3") },
		end: func(e *env, before map[string]types.UID) {
			e.awaitPause(1)
			e.mustHave("v3", 0, 1)
			e.same(before)
			e.argo("promote", name)
			e.MustRest("v3")
			e.awaitRest("v3")
		},
	},
}

// suspend stops the controller, if wanted, and its plugins for the suspension, during which meanwhile is called.
func suspend(t *testing.T, c *cluster.Cluster, controller bool, meanwhile func()) {
	t.Helper()
	signal := func(sig syscall.Signal, send func(string) error) {
		if controller {
			assert.NoError(t, send(cluster.Argo))
		}
		for _, id := range c.PluginProcesses() {
			assert.NoError(t, syscall.Kill(id, sig), "send %v to the plugin process %d", sig, id)
		}
	}
	signal(syscall.SIGSTOP, c.SuspendComponent)
	defer signal(syscall.SIGCONT, c.ResumeComponent)
	began := time.Now()
	meanwhile()
	await.True(t, "the suspension is over", func() bool { return time.Since(began) > suspension })
}

// The controller and its plugins, or the plugins alone, stand still for a minute, as on a machine that is paused. Nothing that they knew
// before has an effect on the groups, and what users did meanwhile has.
//
// Proves: Argo's controller, its plugins, or Kruise's host stand still in mid-release.
func TestSuspended(t *testing.T) {
	c := cluster.Shared(t)
	for _, victim := range []struct {
		name       string
		controller bool
	}{{"controller", true}, {"plugins", false}} {
		t.Run(victim.name, func(t *testing.T) {
			m := newMeeting(len(suspended))
			for _, p := range suspended {
				t.Run(p.name, func(t *testing.T) {
					t.Parallel()
					leave := sync.OnceFunc(m.arrived.Done)
					defer leave()
					e := newRelease(t, step("upgrade: 25%")+pause+step("promote: true"))
					before := e.Identities()
					toPause(e)
					m.strike(func() { p.meanwhile(e) })
					leave()
					m.await(func(strike func()) { suspend(t, c, victim.controller, strike) })
					p.end(e, before)
				})
			}
		})
	}
}
