// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// suspension is longer than a Lease lasts, and than watches wait for a sign of life.
const suspension = time.Minute

// suspended is what happens to a release whose host stands still, and how it goes on afterwards.
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
			if err := send(cluster.Argo); err != nil {
				t.Error(err)
			}
		}
		for _, id := range c.PluginProcesses() {
			if err := syscall.Kill(id, sig); err != nil {
				t.Errorf("send %v to the plugin process %d: %v", sig, id, err)
			}
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
