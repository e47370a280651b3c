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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/observer"
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
	t         *testing.T
	cluster   *cluster.Cluster
	namespace string
	kube      kubernetes.Interface
	lws       lwsclient.Interface
	dynamic   dynamic.Interface
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
	e := &env{t: t, cluster: c, namespace: c.Namespace(t)}
	e.kube, e.lws, e.dynamic = suite.Clients(c)
	t.Cleanup(func() {
		if t.Failed() {
			e.dump()
		}
	})
	observer.Start(t, e.dynamic, e.namespace)
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
	e.t.Helper()
	e.deploy()
	e.apply(manifest(name, plan))
	e.awaitHeld()
	e.edit("v2")
}

func (e *env) eventually(what string, check func(context.Context) error) {
	e.t.Helper()
	await.Nil(e.t, what, check)
}

func (e *env) apply(manifest string) {
	e.t.Helper()
	suite.Apply(e.t, e.cluster, e.namespace, manifest)
}

// deploy creates the workload with image v1, and waits for its groups.
func (e *env) deploy() {
	e.t.Helper()
	e.apply(suite.Workload(name, groups, nil))
	e.mustHave("v1 v1 v1 v1")
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

// edit changes the workload's image, as a GitOps tool does.
func (e *env) edit(tag string) {
	e.t.Helper()
	suite.SetImage(e.t, e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace), name, tag)
}

func (e *env) workload(ctx context.Context) *lws.LeaderWorkerSet {
	e.t.Helper()
	return suite.Get(ctx, e.t, e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace), name)
}

func (e *env) workloads(ctx context.Context) int {
	e.t.Helper()
	list, err := e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	return len(list.Items)
}

func (e *env) release(ctx context.Context, of string) (*v1beta1.BatchRelease, error) {
	o, err := e.dynamic.Resource(batchReleases).Namespace(e.namespace).Get(ctx, of, metav1.GetOptions{})
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
	e.t.Helper()
	r, err := e.release(e.t.Context(), name)
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

// patch applies a JSON merge patch to the BatchRelease's plan.
func (e *env) patch(plan string) {
	e.t.Helper()
	e.patchAll(`{"spec":{"releasePlan":` + plan + `}}`)
}

func (e *env) patchAll(raw string) {
	e.t.Helper()
	suite.Patch(e.t, e.dynamic.Resource(batchReleases).Namespace(e.namespace), name, raw)
}

func (e *env) remove() {
	e.t.Helper()
	suite.Delete(e.t, e.dynamic.Resource(batchReleases).Namespace(e.namespace), name)
}

// await waits for a state of a BatchRelease, of its present spec.
func (e *env) await(of, what string, check func(v1beta1.BatchReleaseStatus) bool) {
	e.t.Helper()
	e.eventually(what, func(ctx context.Context) error {
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
	e.t.Helper()
	e.await(name, fmt.Sprintf("batch %d is ready", batch), func(s v1beta1.BatchReleaseStatus) bool {
		return s.Phase == v1beta1.RolloutPhaseProgressing && s.CanaryStatus.CurrentBatch == batch &&
			s.CanaryStatus.CurrentBatchState == v1beta1.ReadyBatchState && s.CanaryStatus.BatchReadyTime != nil
	})
}

func (e *env) awaitPhase(phase v1beta1.RolloutPhase) {
	e.t.Helper()
	e.await(name, "phase "+string(phase), func(s v1beta1.BatchReleaseStatus) bool { return s.Phase == phase })
}

// awaitEnd waits until the status reports the end: its result, every group ready, and nothing left to wait for.
func (e *env) awaitEnd(how string) {
	e.t.Helper()
	e.await(name, how+", every group ready", func(s v1beta1.BatchReleaseStatus) bool {
		return s.Phase == v1beta1.RolloutPhaseCompleted && strings.HasPrefix(s.Message, how) &&
			s.CanaryStatus.UpdatedReadyReplicas == groups && len(s.Conditions) == 0
	})
}

// awaitStuck waits until the condition reports why the release is stuck.
func (e *env) awaitStuck(of, reason, words string) {
	e.t.Helper()
	e.await(of, "condition "+reason, func(s v1beta1.BatchReleaseStatus) bool {
		return len(s.Conditions) == 1 && s.Conditions[0].Reason == reason && s.Conditions[0].Status == corev1.ConditionFalse &&
			strings.Contains(s.Message, words)
	})
}

// awaitHeld waits until the host holds the workload and waits for a template.
func (e *env) awaitHeld() {
	e.t.Helper()
	e.await(name, "the workload is held", func(s v1beta1.BatchReleaseStatus) bool {
		return s.Phase == v1beta1.RolloutPhasePreparing && strings.Contains(s.Message, "begins when the template changes")
	})
}

// story records each state of the BatchRelease, until it is read.
func (e *env) story() (read func() string) {
	e.t.Helper()
	r := e.mustRelease()
	w, err := e.dynamic.Resource(batchReleases).Namespace(e.namespace).Watch(e.t.Context(), metav1.ListOptions{ResourceVersion: r.ResourceVersion})
	if err != nil {
		e.t.Fatal(err)
	}
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

// tags returns the tags of a workload's groups.
func (e *env) tags(ctx context.Context, of string) (string, error) {
	return grouptags.Of(ctx, e.kube, e.namespace, lws.SetNameLabelKey+"="+of, size)
}

// mustHave waits until the workload's groups are at these tags.
func (e *env) mustHave(want string) {
	e.t.Helper()
	e.mustHaveIn(name, want)
}

func (e *env) mustHaveIn(workload, want string) {
	e.t.Helper()
	grouptags.Await(e.t, e.kube, e.namespace, lws.SetNameLabelKey+"="+workload, size, want)
}

// added returns the workload that a release has added.
func (e *env) added() string {
	e.t.Helper()
	list, err := e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace).List(e.t.Context(), metav1.ListOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	for _, w := range list.Items {
		if w.Name != name {
			return w.Name
		}
	}
	e.t.Fatal("there is no added workload")
	return ""
}

// mustRest waits until every group is at the tag, under hold, and nothing else is left.
func (e *env) mustRest(tags string) {
	e.t.Helper()
	e.mustHave(tags)
	e.eventually("the hold, and nothing else", func(ctx context.Context) error {
		if err := suite.Held(e.workload(ctx)); err != nil {
			return err
		}
		if n := e.workloads(ctx); n != 1 {
			return fmt.Errorf("there are %d workloads", n)
		}
		return nil
	})
}

// leaders returns the UID of each leader pod of the workload.
func (e *env) leaders() map[string]types.UID {
	e.t.Helper()
	pods, err := e.kube.CoreV1().Pods(e.namespace).List(e.t.Context(), metav1.ListOptions{
		LabelSelector: lws.SetNameLabelKey + "=" + name + "," + lws.WorkerIndexLabelKey + "=0",
	})
	if err != nil {
		e.t.Fatal(err)
	}
	out := map[string]types.UID{}
	for _, p := range pods.Items {
		out[p.Name] = p.UID
	}
	return out
}

// mustKeep fails if one of these leaders was restarted.
func (e *env) mustKeep(before map[string]types.UID, indices ...int) {
	e.t.Helper()
	after := e.leaders()
	for _, i := range indices {
		if leader := fmt.Sprintf("%s-%d", name, i); before[leader] != after[leader] {
			e.t.Errorf("%s was restarted", leader)
		}
	}
}

func asJSON(v any) string { return text.JSON(v) }

// notFound returns nil for the error NotFound.
func notFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("it still exists")
	}
	return err
}

// dump logs all objects of the test.
func (e *env) dump() {
	ctx := context.Background()
	suite.Dump(ctx, e.t, e.dynamic, e.namespace, batchReleases)
	tags, _ := e.tags(ctx, name)
	e.t.Logf("groups: %s\nhost:\n%s", tags, sharedLog(e.namespace))
}
