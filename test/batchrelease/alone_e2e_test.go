// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package batchrelease

import (
	"context"
	"maps"
	"strings"
	"syscall"
	"testing"

	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// These tests are not parallel: each has its own hosts, without the shared one.

// Kruise's manager needs this object to start, and is installed with it. test/kruise has the manager itself.
const kruiseComes = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: kruise-rollout-mutating-webhook-configuration}
`

// Proves: BatchRelease: Kruise that is installed later, a driver apart, a workload without a partition, the example.
func TestEndsWhenKruiseIsInstalled(t *testing.T) {
	c := alone(t)
	installKind(t, c)
	p := begin(t, rights(t, c, true))
	defer p.end(syscall.SIGKILL)
	e := envOf(t, c)
	e.Deploy(groups, nil)
	e.Apply(manifest(name, quarters("Canary")))
	e.awaitHeld()
	e.Apply(kruiseComes)
	defer func() {
		err := e.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations().
			Delete(context.Background(), "kruise-rollout-mutating-webhook-configuration", deleteNow)
		assert.NoError(t, err)
	}()
	const why = "Kruise Rollouts' own manager is installed here"
	p.mustEnd(t, why, "lockstep kruise")
	begin(t, rights(t, c, true)).mustEnd(t, why, "panics") // nor does it start
}

// Proves: BatchRelease: Kruise that is installed later, a driver apart, a workload without a partition, the example.
func TestSeparateDriver(t *testing.T) {
	c := alone(t)
	installKind(t, c)
	e := envOf(t, c)
	d := driver.Start(t, driver.Kubeconfig(t, c), e.Namespace)
	p := begin(t, rights(t, c, false), "--driver", d.Address(), "--namespace", e.Namespace)
	defer p.end(syscall.SIGTERM)
	e.begin(quarters("Partition"))
	e.awaitBatch(0)
	e.MustHave("v1 v1 v1 v2")
	assert.Empty(t, children(t, p.cmd.Process.Pid), "it has started")
	// The driver is killed and restarted; the host continues.
	d.Kill()
	e.patch(`{"batchPartition":1}`)
	d.Restart()
	e.awaitBatch(1)
	e.MustHave("v1 v1 v2 v2")
}

// Proves (test): BatchRelease: host killed; two replicas.
func TestHostIsKilled(t *testing.T) {
	c := alone(t)
	installKind(t, c)
	e := envOf(t, c)
	kubeconfig := rights(t, c, true)
	p := begin(t, kubeconfig, "--namespace", e.Namespace)
	e.begin(quarters("Canary"))
	e.awaitBatch(0)
	assert.Empty(t, children(t, p.cmd.Process.Pid), "it has started")
	// The next host continues where a killed one was.
	p.end(syscall.SIGKILL)
	e.patch(`{"batchPartition":2}`)
	p = begin(t, kubeconfig, "--namespace", e.Namespace)
	defer p.end(syscall.SIGKILL)
	e.awaitBatch(2)
	e.patch(`{"batchPartition":null,"finalizingPolicy":"WaitResume"}`)
	e.awaitPhase("Completed")
	e.MustRest("v2")
	p.end(syscall.SIGTERM)
	code := p.cmd.ProcessState.ExitCode()
	assert.Zero(t, code, "asked to end, it ends with %d:\n%s", code, p.log)
}

// Of two replicas one is active; when it is killed, the standby continues where it was.
//
// Proves (test): BatchRelease: host killed; two replicas.
func TestTwoReplicas(t *testing.T) {
	c := alone(t)
	installKind(t, c)
	e := envOf(t, c)
	kubeconfig := rights(t, c, true)
	args := []string{"--namespace", e.Namespace, "--leader-elect", "--leader-elect-namespace", config.Namespace}
	var replicas []*process
	for range 2 {
		p := begin(t, kubeconfig, args...)
		defer p.end(syscall.SIGTERM)
		replicas = append(replicas, p)
	}
	e.begin(quarters("Canary"))
	e.awaitBatch(0)
	working := func() (found []int) {
		for i, p := range replicas {
			if strings.Contains(p.log.String(), "Successfully acquired lease") {
				found = append(found, i)
			}
		}
		return found
	}
	first := working()
	if len(first) != 1 {
		t.Fatalf("replicas %v work, want one:\n%s\n%s", first, replicas[0].log, replicas[1].log)
	}
	replicas[first[0]].end(syscall.SIGKILL)
	e.patch(`{"batchPartition":1}`)
	e.awaitBatch(1)
	e.MustHaveIn(e.added(), "v2 v2")
	both := working()
	assert.Len(t, both, 2, "replicas %v have worked, want both", both)
	e.patch(`{"batchPartition":null,"finalizingPolicy":"WaitResume"}`)
	e.awaitPhase("Completed")
	e.MustRest("v2")
}

// A BatchRelease releases prefill and decode together. Its deletion rolls back and touches no stable group; the next one is promoted.
//
// Proves: Hosts release a DisaggregatedSet: to the end, and back.
func TestDisaggregated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := suite.NewRoles(t, e.Cluster, e.Namespace, name)
	release := strings.Replace(manifest(name, quarters("Canary")), "leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet", "disaggregatedset.x-k8s.io/v1, kind: DisaggregatedSet", 1)
	e.Apply(release)
	e.awaitHeld()
	stable := s.Leaders("v1")

	s.SetImage("v2")
	e.awaitBatch(0)
	s.Await("v2", 1, 1)
	e.remove()
	e.Eventually("the BatchRelease is gone", func(ctx context.Context) error {
		_, err := e.release(ctx, name)
		return suite.Gone(err)
	})
	s.Await("v2", 0, 0)
	now := s.Leaders("v1")
	assert.True(t, maps.Equal(now, stable), "the leaders of the stable revision were %v and are %v", stable, now)

	e.Apply(release)
	e.awaitBatch(0)
	e.patch(`{"batchPartition":1}`)
	e.awaitBatch(1)
	s.Await("v2", 2, 1)
	s.Await("v1", 4, 2)
	e.patch(`{"batchPartition":2}`)
	e.awaitBatch(2)
	s.Await("v2", 4, 2)
	e.patch(`{"batchPartition":null,"finalizingPolicy":"WaitResume"}`)
	e.awaitPhase(v1beta1.RolloutPhaseCompleted)
	e.awaitEnd("promoted")
	s.Await("v1", -1, -1)
	s.Await("v2", 4, 2)
}
