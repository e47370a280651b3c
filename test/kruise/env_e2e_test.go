// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/kruise/install"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	// name is the LeaderWorkerSet's, the RolloutTarget's and the Rollout's.
	name   = "vllm"
	groups = 4
)

var (
	rollouts            = schema.GroupVersionResource{Group: "rollouts.kruise.io", Version: "v1beta1", Resource: "rollouts"}
	batchReleases       = schema.GroupVersionResource{Group: "rollouts.kruise.io", Version: "v1beta1", Resource: "batchreleases"}
	controllerRevisions = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "controllerrevisions"}
	targets             = schema.GroupVersionResource{Group: "lockstep.dev", Version: "v1alpha1", Resource: "rollouttargets"}
)

// env is one test's namespace.
type env struct {
	*suite.Env // Name is that of the RolloutTarget and the Rollout, too.
}

func newEnv(t *testing.T) *env {
	t.Helper()
	c := cluster.Shared(t)
	startController(t, c)
	e := &env{suite.NewEnv(t, c, name)}
	t.Cleanup(func() {
		if t.Failed() {
			e.Dump(rollouts, targets, batchReleases)
			t.Logf("controller:\n%s", controllerLog(e.Namespace))
		}
	})
	suite.RecordStatuses(t, c, &pb.CalculateBatchContextRequest{
		Workload: &pb.WorkloadRef{Namespace: e.Namespace, Name: name}, IncludeGroups: true,
	}, rollouts, targets, batchReleases, controllerRevisions)
	return e
}

// newRelease deploys workload, target and Rollout with these steps, and returns when all rest.
func newRelease(t *testing.T, steps string) *env {
	t.Helper()
	e := newEnv(t)
	e.Deploy(groups, nil)
	e.Apply(target(name))
	e.Apply(rollout(steps))
	e.awaitPhase("Healthy")
	e.MustRest("v1")
	return e
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

// target reads a RolloutTarget.
func (e *env) target(ctx context.Context, of string) *v1alpha1.RolloutTarget {
	e.T.Helper()
	o := suite.GetObject(ctx, e.T, e.Objects(targets), of)
	out := &v1alpha1.RolloutTarget{}
	require.NoError(e.T, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out))
	return out
}

// patch applies a JSON merge patch to an object with the test's name.
func (e *env) patch(resource schema.GroupVersionResource, raw string, subresources ...string) {
	e.T.Helper()
	_, err := e.Objects(resource).Patch(e.T.Context(), e.Name, types.MergePatchType, []byte(raw), metav1.PatchOptions{}, subresources...)
	require.False(e.T, err != nil && !apierrors.IsConflict(err), err)
}

func (e *env) remove(resource schema.GroupVersionResource) {
	e.T.Helper()
	suite.DeleteObject(e.T, e.Objects(resource), e.Name)
}

// awaitRollout waits for a state of Kruise's Rollout.
func (e *env) awaitRollout(what string, check func(*unstructured.Unstructured) bool) {
	e.T.Helper()
	e.Eventually(what, func(ctx context.Context) error {
		r, err := e.Objects(rollouts).Get(ctx, e.Name, metav1.GetOptions{})
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
	e.T.Helper()
	e.awaitRollout("phase "+phase, func(r *unstructured.Unstructured) bool { return field(r, "status", "phase") == phase })
}

// awaitPause waits until the Rollout waits for an approval after step i.
func (e *env) awaitPause(i int) {
	e.T.Helper()
	e.awaitRollout(fmt.Sprintf("the pause after step %d", i), func(r *unstructured.Unstructured) bool {
		return field(r, "status", "canaryStatus", "currentStepIndex") == fmt.Sprint(i) &&
			field(r, "status", "canaryStatus", "currentStepState") == "StepPaused"
	})
}

// approve is `kubectl kruise rollout approve`, repeated until Kruise accepts it: Kruise overwrites the whole status, and loses
// an approval that was written in between.
func (e *env) approve() {
	e.T.Helper()
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
	e.T.Helper()
	r := suite.GetObject(e.T.Context(), e.T, e.Objects(rollouts), e.Name)
	return field(r, "status", "canaryStatus", "canaryRevision")
}

// awaitDone waits until Kruise has completed a release of the template now in the target.
func (e *env) awaitDone() {
	e.T.Helper()
	e.awaitRollout("the end of the release", func(r *unstructured.Unstructured) bool {
		return field(r, "status", "phase") == "Healthy" && field(r, "status", "canaryStatus", "currentStepState") == "Completed" ||
			field(r, "status", "phase") == "Healthy" && strings.Contains(asJSON(r.Object["status"]), "\"type\":\"Succeeded\"")
	})
}

// awaitReady waits for the target's condition.
func (e *env) awaitReady(of string, status metav1.ConditionStatus, reason string) {
	e.T.Helper()
	e.Eventually(fmt.Sprintf("condition Ready %s %s", status, reason), func(ctx context.Context) error {
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

// parallel is how many tests run at once.
const parallel = 6

func TestMain(m *testing.M) {
	code := suite.Main(m, parallel, suite.WithRoles(), cluster.WithGatewayAPI(), cluster.WithKruise(rights))
	stopController()
	stopServer()
	driver.Cleanup()
	os.Exit(code)
}

// apart reports whether the driver is a separate `lockstep serve`. Both modes are tested, one with each version of Kruise.
func apart(c *cluster.Cluster) bool { return c.Versions().Kruise != "v0.6.2" }

// rights are the permissions of config/kruise.
func rights(ctx context.Context, c *cluster.Cluster) error {
	if apart(c) {
		return install.Rights(ctx, c)
	}
	return install.DriverInside(ctx, c)
}
