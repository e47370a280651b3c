// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"fmt"
	"strings"
	"testing"

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

	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/observer"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	// name is the LeaderWorkerSet's, the RolloutTarget's and the Rollout's.
	name   = "vllm"
	groups = 4
	size   = 2
)

var (
	rollouts            = schema.GroupVersionResource{Group: "rollouts.kruise.io", Version: "v1beta1", Resource: "rollouts"}
	batchReleases       = schema.GroupVersionResource{Group: "rollouts.kruise.io", Version: "v1beta1", Resource: "batchreleases"}
	controllerRevisions = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "controllerrevisions"}
	targets             = schema.GroupVersionResource{Group: "lockstep.dev", Version: "v1alpha1", Resource: "rollouttargets"}
)

// env is one test's namespace.
type env struct {
	t         *testing.T
	cluster   *cluster.Cluster
	namespace string
	// name is that of the LeaderWorkerSet, the RolloutTarget and the Rollout, groups how many it has.
	name    string
	groups  int
	kube    kubernetes.Interface
	lws     lwsclient.Interface
	dynamic dynamic.Interface
}

func newEnv(t *testing.T) *env {
	t.Helper()
	c := cluster.Shared(t)
	startController(t, c)
	e := &env{t: t, cluster: c, namespace: c.Namespace(t), name: name, groups: groups}
	e.kube, e.lws, e.dynamic = suite.Clients(c)
	t.Cleanup(func() {
		if t.Failed() {
			e.dump()
		}
	})
	observer.Start(t, e.dynamic, e.namespace)
	suite.RecordStatuses(t, c, &pb.CalculateBatchContextRequest{
		Workload: &pb.WorkloadRef{Namespace: e.namespace, Name: name}, IncludeGroups: true,
	}, rollouts, targets, batchReleases, controllerRevisions)
	return e
}

// newRelease deploys workload, target and Rollout with these steps, and returns when all rest.
func newRelease(t *testing.T, steps string) *env {
	t.Helper()
	e := newEnv(t)
	e.deploy()
	e.apply(target(name))
	e.apply(rollout(steps))
	e.awaitPhase("Healthy")
	e.mustRest("v1")
	return e
}

func (e *env) eventually(what string, check func(context.Context) error) {
	e.t.Helper()
	await.Nil(e.t, what, check)
}

func (e *env) apply(manifest string) {
	e.t.Helper()
	suite.Apply(e.t, e.cluster, e.namespace, manifest)
}

// deploy creates the workload with image v1.
func (e *env) deploy() {
	e.t.Helper()
	e.apply(suite.Workload(name, groups, nil))
}

func target(of string) string {
	return fmt.Sprintf(`
apiVersion: lockstep.dev/v1alpha1
kind: RolloutTarget
metadata: {name: %s}
spec: {workloadRef: {name: %s}}
`, of, name)
}

// rollout is Kruise's, with steps that are YAML lines.
func rollout(steps string, more ...string) string {
	return fmt.Sprintf(`
apiVersion: rollouts.kruise.io/v1beta1
kind: Rollout
metadata: {name: %s}
spec:
  workloadRef: {apiVersion: lockstep.dev/v1alpha1, kind: RolloutTarget, name: %s}
  strategy:
    canary:
      steps:
%s
%s`, name, name, indent(steps, 6), indent(strings.Join(more, "\n"), 6))
}

func indent(text string, by int) string {
	if text = strings.Trim(text, "\n"); text == "" {
		return ""
	}
	margin := strings.Repeat(" ", by)
	return margin + strings.ReplaceAll(text, "\n", "\n"+margin)
}

// edit changes the workload's image, as a GitOps tool does, and optionally labels.
func (e *env) edit(tag string, labels ...string) {
	e.t.Helper()
	suite.SetImage(e.t, e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace), e.name, tag, func(w *lws.LeaderWorkerSet) {
		for i := 0; i+1 < len(labels); i += 2 {
			metav1.SetMetaDataLabel(&w.ObjectMeta, labels[i], labels[i+1])
		}
	})
}

func (e *env) workload(ctx context.Context) *lws.LeaderWorkerSet {
	e.t.Helper()
	return suite.Get(ctx, e.t, e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace), e.name)
}

// target reads a RolloutTarget.
func (e *env) target(ctx context.Context, of string) *v1alpha1.RolloutTarget {
	e.t.Helper()
	o, err := e.dynamic.Resource(targets).Namespace(e.namespace).Get(ctx, of, metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	out := &v1alpha1.RolloutTarget{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out); err != nil {
		e.t.Fatal(err)
	}
	return out
}

// patch applies a JSON merge patch to an object with the test's name.
func (e *env) patch(resource schema.GroupVersionResource, raw string, subresources ...string) {
	e.t.Helper()
	if _, err := e.dynamic.Resource(resource).Namespace(e.namespace).
		Patch(e.t.Context(), e.name, types.MergePatchType, []byte(raw), metav1.PatchOptions{}, subresources...); err != nil && !apierrors.IsConflict(err) {
		e.t.Fatal(err)
	}
}

func (e *env) remove(resource schema.GroupVersionResource) {
	e.t.Helper()
	suite.Delete(e.t, e.dynamic.Resource(resource).Namespace(e.namespace), e.name)
}

// awaitRollout waits for a state of Kruise's Rollout.
func (e *env) awaitRollout(what string, check func(*unstructured.Unstructured) bool) {
	e.t.Helper()
	e.eventually(what, func(ctx context.Context) error {
		r, err := e.dynamic.Resource(rollouts).Namespace(e.namespace).Get(ctx, e.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if observed, _, _ := unstructured.NestedInt64(r.Object, "status", "observedGeneration"); observed == r.GetGeneration() && check(r) {
			return nil
		}
		return fmt.Errorf("the Rollout's status is %s", asJSON(r.Object["status"]))
	})
}

func field(o *unstructured.Unstructured, path ...string) string { return text.Field(o, path...) }

func (e *env) awaitPhase(phase string) {
	e.t.Helper()
	e.awaitRollout("phase "+phase, func(r *unstructured.Unstructured) bool { return field(r, "status", "phase") == phase })
}

// awaitPause waits until the Rollout waits for an approval after step i.
func (e *env) awaitPause(i int) {
	e.t.Helper()
	e.awaitRollout(fmt.Sprintf("the pause after step %d", i), func(r *unstructured.Unstructured) bool {
		return field(r, "status", "canaryStatus", "currentStepIndex") == fmt.Sprint(i) &&
			field(r, "status", "canaryStatus", "currentStepState") == "StepPaused"
	})
}

// approve is `kubectl kruise rollout approve`, repeated until Kruise accepts it: Kruise overwrites the whole status, and loses
// an approval that was written in between.
func (e *env) approve() {
	e.t.Helper()
	var step string
	at := func(r *unstructured.Unstructured, state string) bool {
		index := field(r, "status", "canaryStatus", "currentStepIndex")
		if step == "" {
			step = index
		}
		return index == step && field(r, "status", "canaryStatus", "currentStepState") == state
	}
	e.awaitRollout("the approval is accepted", func(r *unstructured.Unstructured) bool {
		if !at(r, "StepPaused") {
			return !at(r, "StepReady")
		}
		e.patch(rollouts, `{"metadata":{"resourceVersion":"`+r.GetResourceVersion()+
			`"},"status":{"currentStepState":"StepReady","canaryStatus":{"currentStepState":"StepReady"}}}`, "status")
		return false
	})
}

// releasing returns the revision that Kruise is releasing.
func (e *env) releasing() string {
	e.t.Helper()
	r, err := e.dynamic.Resource(rollouts).Namespace(e.namespace).Get(e.t.Context(), e.name, metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	return field(r, "status", "canaryStatus", "canaryRevision")
}

// awaitDone waits until Kruise has completed a release of the template now in the target.
func (e *env) awaitDone() {
	e.t.Helper()
	e.awaitRollout("the end of the release", func(r *unstructured.Unstructured) bool {
		return field(r, "status", "phase") == "Healthy" && field(r, "status", "canaryStatus", "currentStepState") == "Completed" ||
			field(r, "status", "phase") == "Healthy" && strings.Contains(asJSON(r.Object["status"]), "\"type\":\"Succeeded\"")
	})
}

// mustHave waits until the groups are at these tags.
func (e *env) mustHave(want string) {
	e.t.Helper()
	grouptags.Await(e.t, e.kube, e.namespace, "", size, want)
}

// mustRest waits until every group is at the tag, under hold.
func (e *env) mustRest(tag string) {
	e.t.Helper()
	e.mustHave(strings.TrimSpace(strings.Repeat(tag+" ", e.groups)))
	e.eventually("the hold", func(ctx context.Context) error {
		return suite.Held(e.workload(ctx))
	})
}

// awaitReady waits for the target's condition.
func (e *env) awaitReady(of string, status metav1.ConditionStatus, reason string) {
	e.t.Helper()
	e.eventually(fmt.Sprintf("condition Ready %s %s", status, reason), func(ctx context.Context) error {
		t := e.target(ctx, of)
		for _, c := range t.Status.Conditions {
			if c.Status == status && (reason == "" || c.Reason == reason) {
				return nil
			}
		}
		return fmt.Errorf("it is %s", asJSON(t.Status))
	})
}

func asJSON(v any) string { return text.JSON(v) }

// dump logs all objects of the test.
func (e *env) dump() {
	ctx := context.Background()
	suite.Dump(ctx, e.t, e.dynamic, e.namespace, rollouts, targets, rollouts.GroupVersion().WithResource("batchreleases"))
	tags, _ := grouptags.Of(ctx, e.kube, e.namespace, "", size)
	e.t.Logf("groups: %s\ncontroller:\n%s", tags, controllerLog(e.namespace))
}
