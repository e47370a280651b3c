// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package batchrelease

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	// name is the LeaderWorkerSet's and the BatchRelease's.
	name   = "vllm"
	groups = 4
	size   = 2
)

var batchReleases = schema.GroupVersionResource{Group: "rollouts.kruise.io", Version: "v1beta1", Resource: "batchreleases"}

// env is one test's namespace.
type env struct {
	*suite.Env // Name is the BatchRelease's name, too.
}

// newEnv returns a namespace that the shared host watches.
func newEnv(t *testing.T) *env {
	t.Helper()
	c := cluster.Shared(t)
	startShared(t, c)
	return envOf(t, c)
}

func envOf(t *testing.T, c *cluster.Cluster) *env {
	t.Helper()
	e := &env{suite.NewEnv(t, c, name)}
	t.Cleanup(func() {
		if t.Failed() {
			e.Dump(batchReleases)
			t.Logf("host:\n%s", sharedLog(e.Namespace))
		}
	})
	return e
}

// newRelease deploys a workload and a BatchRelease with this plan, whose lines are YAML, and changes the template to v2.
func newRelease(t *testing.T, plan string) *env {
	t.Helper()
	e := newEnv(t)
	e.begin(plan)
	return e
}

// begin is newRelease in an existing env.
func (e *env) begin(plan string) {
	e.T.Helper()
	e.Deploy(groups, nil)
	e.Apply(manifest(name, plan))
	e.awaitHeld()
	e.Edit("v2")
}

// manifest returns a BatchRelease with this plan.
func manifest(of, plan string) string {
	return fmt.Sprintf(`
apiVersion: rollouts.kruise.io/v1beta1
kind: BatchRelease
metadata: {name: %s}
spec:
  workloadRef: {apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: %s}
  releasePlan:
    enableExtraWorkloadForCanary: false
    %s
`, of, name, strings.ReplaceAll(strings.TrimSpace(plan), "\n", "\n    "))
}

// quarters is a plan that waits after each batch.
func quarters(style string) string {
	return "rollingStyle: " + style + "\nbatchPartition: 0\nbatches: [{canaryReplicas: 25%}, {canaryReplicas: 50%}, {canaryReplicas: 100%}]"
}

func (e *env) workloads(ctx context.Context) int {
	e.T.Helper()
	list, err := e.Sets().List(ctx, metav1.ListOptions{})
	require.NoError(e.T, err)
	return len(list.Items)
}

func (e *env) release(ctx context.Context, of string) (*v1beta1.BatchRelease, error) {
	o, err := e.Objects(batchReleases).Get(ctx, of, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return typed(o)
}

func typed(o *unstructured.Unstructured) (*v1beta1.BatchRelease, error) {
	out := &v1beta1.BatchRelease{}
	return out, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out)
}

func (e *env) mustRelease() *v1beta1.BatchRelease {
	e.T.Helper()
	r, err := e.release(e.T.Context(), name)
	require.NoError(e.T, err)
	return r
}

// patch applies a JSON merge patch to the BatchRelease's plan.
func (e *env) patch(plan string) {
	e.T.Helper()
	suite.Patch(e.T, e.Objects(batchReleases), name, `{"spec":{"releasePlan":`+plan+`}}`)
}

func (e *env) remove() {
	e.T.Helper()
	suite.DeleteObject(e.T, e.Objects(batchReleases), name)
}

// await waits for a state of a BatchRelease, of its present spec.
func (e *env) await(of, what string, check func(v1beta1.BatchReleaseStatus) bool) {
	e.T.Helper()
	e.Eventually(what, func(ctx context.Context) error {
		r, err := e.release(ctx, of)
		if err != nil {
			return err
		}
		if r.Status.ObservedGeneration == r.Generation && check(r.Status) {
			return nil
		}
		return fmt.Errorf("generation %d has status %s", r.Generation, asJSON(r.Status))
	})
}

// awaitBatch waits until a batch is ready.
func (e *env) awaitBatch(batch int32) {
	e.T.Helper()
	e.await(name, fmt.Sprintf("batch %d is ready", batch), func(s v1beta1.BatchReleaseStatus) bool {
		return s.Phase == v1beta1.RolloutPhaseProgressing && s.CanaryStatus.CurrentBatch == batch &&
			s.CanaryStatus.CurrentBatchState == v1beta1.ReadyBatchState && s.CanaryStatus.BatchReadyTime != nil
	})
}

func (e *env) awaitPhase(phase v1beta1.RolloutPhase) {
	e.T.Helper()
	e.await(name, "phase "+string(phase), func(s v1beta1.BatchReleaseStatus) bool { return s.Phase == phase })
}

// awaitEnd waits until the status reports the end: its result, every group ready, and nothing left to wait for.
func (e *env) awaitEnd(how string) {
	e.T.Helper()
	e.await(name, how+", every group ready", func(s v1beta1.BatchReleaseStatus) bool {
		return s.Phase == v1beta1.RolloutPhaseCompleted && strings.HasPrefix(s.Message, how) &&
			s.CanaryStatus.UpdatedReadyReplicas == groups && len(s.Conditions) == 0
	})
}

// awaitStuck waits until the condition reports why the release is stuck.
func (e *env) awaitStuck(of, reason, words string) {
	e.T.Helper()
	e.await(of, "condition "+reason, func(s v1beta1.BatchReleaseStatus) bool {
		return len(s.Conditions) == 1 && s.Conditions[0].Reason == reason && s.Conditions[0].Status == corev1.ConditionFalse &&
			strings.Contains(s.Message, words)
	})
}

// awaitHeld waits until the host holds the workload and waits for a template.
func (e *env) awaitHeld() {
	e.T.Helper()
	e.await(name, "the workload is held", func(s v1beta1.BatchReleaseStatus) bool {
		return s.Phase == v1beta1.RolloutPhasePreparing && strings.Contains(s.Message, "begins when the template changes")
	})
}

// story records each state of the BatchRelease, until it is read.
func (e *env) story() (read func() string) {
	e.T.Helper()
	r := e.mustRelease()
	w, err := e.Objects(batchReleases).Watch(e.T.Context(), metav1.ListOptions{ResourceVersion: r.ResourceVersion})
	require.NoError(e.T, err)
	var seen []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			o, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			r, err := typed(o)
			if err != nil {
				continue
			}
			state := string(r.Status.Phase)
			if r.Status.Phase == v1beta1.RolloutPhaseProgressing {
				state = fmt.Sprintf("%d %s", r.Status.CanaryStatus.CurrentBatch, r.Status.CanaryStatus.CurrentBatchState)
			}
			if len(seen) == 0 || seen[len(seen)-1] != state {
				seen = append(seen, state)
			}
			if r.Status.Phase == v1beta1.RolloutPhaseCompleted {
				w.Stop()
			}
		}
	}()
	return sync.OnceValue(func() string {
		select {
		case <-done:
		case <-time.After(await.Patience):
			w.Stop()
		}
		return strings.Join(seen, ", ")
	})
}

// added returns the workload that a release has added.
func (e *env) added() string {
	e.T.Helper()
	list := suite.List(e.T, e.Sets(), metav1.ListOptions{})
	for _, w := range list.Items {
		if w.Name != name {
			return w.Name
		}
	}
	e.T.Fatal("there is no added workload")
	return ""
}

func asJSON(v any) string { return text.JSON(v) }
