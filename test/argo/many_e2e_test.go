// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// More Rollouts wait for groups that never start than the controller has workers: another Rollout still progresses.
//
// Proves: Argo: its own traffic steps, with requests; waiting steps leave workers for others.
func TestWaitingStepsLeaveWorkers(t *testing.T) {
	t.Parallel()
	const stuck = 12
	e := newRelease(t, step("upgrade: 50%")+step("upgrade: 100%")+step("promote: true"))
	alone := e.takes("v2")
	small := func(i int, tag, behavior string) string {
		return fmt.Sprintf(`
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: stuck-%d}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 1
    workerTemplate:
      metadata: {annotations: {%s: %q}}
      spec: {containers: [{name: server, image: "example.com/stuck:%s"}]}
`, i, cluster.AnnotationBehavior, behavior, tag)
	}
	for i := range stuck {
		e.Apply(small(i, "v1", ""))
		rollout := fmt.Sprintf("stuck-%d", i)
		e.Apply(strings.Replace(rolloutManifest(rollout, step("upgrade: 100%")+step("promote: true")), "workload: "+name, "workload: "+rollout, 1))
	}
	each := func(what string, check func(*v1alpha1.Rollout) bool) {
		t.Helper()
		last := errors.New("nothing")
		e.Eventually(what, func(ctx context.Context) error {
			for i := range stuck {
				r, err := e.tryGet(ctx, fmt.Sprintf("stuck-%d", i))
				if err != nil {
					return fmt.Errorf("%w; before: %w", err, last)
				}
				if !check(r) {
					last = fmt.Errorf("%s: %s %s", r.Name, r.Status.Phase, stepMessages(r))
					return last
				}
			}
			return nil
		})
	}
	e.Eventually("all are held", func(ctx context.Context) error {
		sets, err := e.Sets().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range sets.Items {
			rolling := sets.Items[i].Spec.RolloutStrategy.RollingUpdateConfiguration
			if sets.Items[i].Status.ReadyReplicas == 0 || rolling == nil || !record.SameRolling(*rolling, record.Hold()) {
				return fmt.Errorf("%s is not", sets.Items[i].Name)
			}
		}
		return nil
	})
	each("all are healthy", func(r *v1alpha1.Rollout) bool { return r.Status.Phase == v1alpha1.RolloutPhaseHealthy })
	for i := range stuck {
		e.Apply(small(i, "v2", cluster.BehaviorNeverReady))
	}
	each("all wait", func(r *v1alpha1.Rollout) bool { return ran(r, 0).Phase == v1alpha1.StepPluginPhaseRunning })
	beside := e.takes("v3")
	t.Logf("a release alone took %s, one beside %d that wait %s", alone.Round(100*time.Millisecond), stuck, beside.Round(100*time.Millisecond))
	// A worker that is blocked for a whole wait costs 20 s.
	limit := 4*alone + 30*time.Second
	assert.LessOrEqual(t, beside, limit, "it took more than %s", limit)
}

// takes returns the duration of a release from the edit to the end.
func (e *env) takes(tag string) time.Duration {
	e.T.Helper()
	start := time.Now()
	e.edit(tag)
	e.await("the release is over", func(r *v1alpha1.Rollout) bool {
		stable, _, err := e.counts(e.T.Context(), tag)
		return err == nil && stable == groups && r.Status.Phase == v1alpha1.RolloutPhaseHealthy
	})
	return time.Since(start)
}
