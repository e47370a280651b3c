// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const heldAnnotation = "lockstep.dev/held"

// autoscaled returns an environment for releases under an autoscaler, which some of the replayed rules do not model.
func autoscaled(t *testing.T) *env {
	t.Helper()
	e := newEnv(t)
	e.observer.waive(ruleHold, ruleStableUntouched)
	return e
}

// blueGreen returns a policy with one batch: the complete second set.
func blueGreen() *pb.ReleasePolicy {
	p := policy("100%")
	p.Style = pb.Style_STYLE_BLUE_GREEN
	return p
}

// autoscale creates a HorizontalPodAutoscaler for the workload. Its metric is memory, with a target of 100 Mi per leader; see
// load. Without a metrics API it only keeps the replicas within its bounds.
func (w *workload) autoscale(minReplicas, maxReplicas int32, behavior *autoscalingv2.HorizontalPodAutoscalerBehavior) {
	w.t.Helper()
	w.autoscaleBy(autoscalingv2.CrossVersionObjectReference{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: w.name},
		minReplicas, maxReplicas, behavior)
}

// autoscaleBy is autoscale for an HPA that scales another object.
func (w *workload) autoscaleBy(
	target autoscalingv2.CrossVersionObjectReference, minReplicas, maxReplicas int32, behavior *autoscalingv2.HorizontalPodAutoscalerBehavior,
) {
	w.t.Helper()
	h := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: w.name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: target, MinReplicas: &minReplicas, MaxReplicas: maxReplicas, Behavior: behavior,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricSource{Name: "memory", Target: autoscalingv2.MetricTarget{
					Type: autoscalingv2.AverageValueMetricType, AverageValue: ptr.To(resource.MustParse("100Mi")),
				}},
			}},
		},
	}
	suite.Create(w.t, w.kube.AutoscalingV2().HorizontalPodAutoscalers(w.namespace), h)
}

func (w *workload) hpa() *autoscalingv2.HorizontalPodAutoscaler {
	w.t.Helper()
	h := suite.Get(w.t.Context(), w.t, w.kube.AutoscalingV2().HorizontalPodAutoscalers(w.namespace), w.name)
	return h
}

// editAutoscaler edits the HorizontalPodAutoscaler as a user would.
func (w *workload) editAutoscaler(change func(*autoscalingv2.HorizontalPodAutoscaler)) {
	w.t.Helper()
	err := retry.RetryOnConflict(persistent, func() error {
		h := w.hpa()
		change(h)
		_, err := w.kube.AutoscalingV2().HorizontalPodAutoscalers(w.namespace).Update(w.t.Context(), h, metav1.UpdateOptions{FieldManager: "e2e-user"})
		return err
	})
	require.NoError(w.t, err)
}

func bounds(minReplicas, maxReplicas int32) func(*autoscalingv2.HorizontalPodAutoscaler) {
	return func(h *autoscalingv2.HorizontalPodAutoscaler) {
		h.Spec.MinReplicas, h.Spec.MaxReplicas = &minReplicas, maxReplicas
	}
}

// selectPolicies returns a behavior without a stabilization window for scale-down.
func selectPolicies(up, down autoscalingv2.ScalingPolicySelect) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{SelectPolicy: &up},
		ScaleDown: &autoscalingv2.HPAScalingRules{SelectPolicy: &down, StabilizationWindowSeconds: ptr.To[int32](0)},
	}
}

const (
	maxChange = autoscalingv2.MaxChangePolicySelect
	minChange = autoscalingv2.MinChangePolicySelect
	disabled  = autoscalingv2.DisabledPolicySelect
)

func scalingDisabled(h *autoscalingv2.HorizontalPodAutoscaler) bool {
	b := h.Spec.Behavior
	return h.Annotations[heldAnnotation] != "" && b != nil &&
		ptr.Deref(b.ScaleUp.SelectPolicy, "") == disabled && ptr.Deref(b.ScaleDown.SelectPolicy, "") == disabled
}

// mustHoldAutoscaler fails unless the driver holds the HorizontalPodAutoscaler.
func (w *workload) mustHoldAutoscaler() {
	w.t.Helper()
	if h := w.hpa(); !scalingDisabled(h) {
		w.t.Fatalf("not held: %v %s", h.Annotations, asJSON(h.Spec.Behavior))
	}
}

// mustRestoreAutoscaler fails unless the HorizontalPodAutoscaler has its former spec and no annotation of the driver.
func (w *workload) mustRestoreAutoscaler(before *autoscalingv2.HorizontalPodAutoscaler) {
	w.t.Helper()
	now := w.hpa()
	assert.True(w.t, asJSON(now.Spec) == asJSON(before.Spec) && now.Annotations[heldAnnotation] == "",
		"not restored: %v\n was %s\n now %s", now.Annotations, asJSON(before.Spec), asJSON(now.Spec))
}

// load sets the memory usage of each leader, in Mi.
func (w *workload) load(mi int) {
	w.t.Helper()
	leaders := map[string]int{}
	for group := range 8 {
		leaders[fmt.Sprintf("%s-%d", w.name, group)] = mi
	}
	w.eventually("the load is "+fmt.Sprint(mi), func(ctx context.Context) error {
		return suite.SetPodMetrics(ctx, w.cluster, w.namespace, w.name, leaders)
	})
}

// awaitComputed waits until the HorizontalPodAutoscaler has observed this load, and returns its desired replicas.
func (w *workload) awaitComputed(mi int) (desired int32) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the autoscaler has seen %d Mi", mi), func(context.Context) error {
		h := w.hpa()
		for _, m := range h.Status.CurrentMetrics {
			if m.Resource != nil && m.Resource.Current.AverageValue != nil && m.Resource.Current.AverageValue.Value() == int64(mi)<<20 {
				desired = h.Status.DesiredReplicas
				return nil
			}
		}
		return fmt.Errorf("its status is %s", asJSON(h.Status))
	})
	return desired
}

func (w *workload) awaitReplicas(n int32) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s has %d replicas", w.name, n), func(context.Context) error {
		if got := replicasOf(w.get()); got != n {
			return fmt.Errorf("it has %d; the autoscaler's status is %s", got, asJSON(w.hpa().Status))
		}
		return nil
	})
	w.awaitReady()
}

// The load falls and rises during a blue-green release: the autoscaler scales neither set. It scales the workload before and
// after the release.
//
// Proves (test): Safety rule 4: an autoscaler removes no groups whose load a release moved, and is restored.
func TestAutoscalerBlueGreen(t *testing.T) {
	t.Parallel()
	e := autoscaled(t)
	suite.ServePodMetrics(t, e.cluster)
	w := e.adopt(model("model", 2, 2))
	w.load(150)
	w.autoscale(1, 4, selectPolicies(maxChange, maxChange))
	w.awaitReplicas(4)
	w.load(100)
	w.awaitComputed(100)
	before := w.hpa()
	w.edit(image("v2"))
	mustWarn(t, w.initialize("r1", blueGreen()).GetWarnings(), "AutoscalerHeld", "HorizontalPodAutoscaler model", heldAnnotation)
	w.mustHoldAutoscaler()
	w.upgrade("r1", 0)
	w.awaitState(pb.State_STATE_READY)
	w.load(20)
	assert.Equal(t, int32(4), w.awaitComputed(20), "the held autoscaler wants")
	w.load(400)
	w.awaitComputed(400)
	w.load(20)
	w.awaitComputed(20)
	assert.Equal(t, int32(4), replicasOf(w.get()), "replicas in mid-release")
	w.mustHoldAutoscaler()
	w.startFinalize("r1", promote)
	w.await("the autoscaler would remove groups, and is not restored", func(c *pb.BatchContext) bool { return c.GetReason() == "WaitingForAutoscaler" })
	w.mustHoldAutoscaler()
	w.load(100) // the requests have returned
	w.finalize("r1", promote)
	w.mustRestoreAutoscaler(before)
	w.mustRun("v2")
	w.mustBeIdle()
	w.load(20)
	w.awaitReplicas(1)
	w.mustHaveEvents("AutoscalerHeld", "AutoscalerReleased")
	assert.Equal(t, 2, w.autoscalerWrites(), "writes of the autoscaler")
}

// However a release ends, the autoscaler is restored, with a behavior and without. That is also true if the driver does not run while the
// user ends it, and never before no release needs it held.
//
// Proves: An autoscaler: every style and end, edits, kills, KEDA, scaling to 0.
func TestAutoscalerRestored(t *testing.T) {
	t.Parallel()
	finalize := func(intent pb.FinalizeIntent) func(*workload) { return func(w *workload) { w.finalize("r1", intent) } }
	nothing := func(*workload) {}
	heldAgain := func(w *workload) {
		w.eventually("held again", func(context.Context) error { return checkHeld(w.hpa()) })
	}
	for _, test := range []struct {
		name     string
		behavior *autoscalingv2.HorizontalPodAutoscalerBehavior
		// change is what the user does. With down it is tried once more while the driver does not run.
		change func(*workload)
		down   bool
		// then is what follows.
		then func(*workload)
	}{
		{"promote-bare", nil, nothing, true, func(w *workload) { w.mustHoldAutoscaler(); w.finalize("r1", promote) }},
		{"rollback", selectPolicies(maxChange, disabled), nothing, false, finalize(rollback)},
		{"rollback-bare", nil, nothing, false, finalize(rollback)},
		{
			"template-reverted", selectPolicies(minChange, maxChange), func(w *workload) { w.edit(image("v1")) }, true,
			func(w *workload) { w.awaitState(rolledBack) },
		},
		{"disown", nil, finalize(rollback), false, func(w *workload) {
			w.disown(w.ref())
		}},
		{
			"record-removed", selectPolicies(maxChange, minChange), func(w *workload) { w.removeRecord() }, true,
			func(w *workload) { w.awaitState(pb.State_STATE_UNMANAGED) },
		},
		{
			"deleted", selectPolicies(maxChange, minChange), func(w *workload) { w.remove(w.name, metav1.DeletePropagationBackground) }, true,
			func(w *workload) { w.awaitNothing() },
		},
		{"edited", selectPolicies(maxChange, minChange), func(w *workload) {
			w.editAutoscaler(func(h *autoscalingv2.HorizontalPodAutoscaler) {
				h.Spec.Behavior.ScaleUp.SelectPolicy = ptr.To(maxChange)
			})
		}, true, func(w *workload) { heldAgain(w); w.finalize("r1", rollback) }},
		{"pointed-elsewhere", selectPolicies(maxChange, minChange), func(w *workload) {
			w.editAutoscaler(func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.ScaleTargetRef.Name = "another" })
			w.awaitAutoscalerRestored()
			w.editAutoscaler(func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.ScaleTargetRef.Name = w.name })
		}, false, func(w *workload) { heldAgain(w); w.finalize("r1", rollback) }},
	} {
		for name, down := range map[string]bool{test.name: false, test.name + "-driver-down": true} {
			if down && !test.down {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := autoscaled(t).adopt(model("model", 2, 1))
				w.autoscale(1, 4, test.behavior)
				before := w.hpa()
				w.edit(image("v2"))
				w.initialize("r1", blueGreen())
				w.upgrade("r1", 0)
				w.mustHoldAutoscaler()
				if down {
					w.driver.Kill()
				}
				test.change(w)
				if down {
					w.driver.Restart()
				}
				test.then(w)
				w.awaitAutoscalerRestored()
				w.mustRestoreAutoscaler(before)
			})
		}
	}
}

// The user edits the autoscaler in mid-release: it stays held, and the edit is kept when it is restored.
//
// Proves: An autoscaler: every style and end, edits, kills, KEDA, scaling to 0.
func TestAutoscalerEdited(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		edit func(*autoscalingv2.HorizontalPodAutoscaler)
		want func(*autoscalingv2.HorizontalPodAutoscaler)
	}{
		{"policy", func(h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Spec.Behavior.ScaleDown.SelectPolicy = ptr.To(minChange)
		}, func(h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Spec.Behavior.ScaleDown.SelectPolicy = ptr.To(minChange)
		}},
		{"behavior-removed", func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.Behavior = nil },
			func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.Behavior = nil }},
		{"replaced", func(h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Annotations, h.Spec.Behavior = nil, selectPolicies(minChange, minChange)
		}, func(h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Spec.Behavior.ScaleUp.SelectPolicy, h.Spec.Behavior.ScaleDown.SelectPolicy = ptr.To(minChange), ptr.To(minChange)
		}},
		{"bounds", bounds(2, 7), bounds(2, 7)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := autoscaled(t).adopt(model("model", 2, 1))
			w.autoscale(1, 4, selectPolicies(maxChange, maxChange))
			want := w.hpa()
			test.want(want)
			w.edit(image("v2"))
			w.initialize("r1", blueGreen())
			w.upgrade("r1", 0)
			w.editAutoscaler(test.edit)
			w.eventually("held again", func(context.Context) error { return checkHeld(w.hpa()) })
			w.finalize("r1", promote)
			w.mustRestoreAutoscaler(want)
		})
	}
}

// In a canary release the autoscaler adds stable groups, batches are computed from the new number, and it removes groups
// only when its user lowers its bounds.
//
// Proves: Safety rule 4: the requests of all groups go to a canary, and after the promotion as many groups serve as before.
// Proves: An autoscaler: every style and end, edits, kills, KEDA, scaling to 0.
func TestAutoscalerCanary(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	suite.ServePodMetrics(t, e.cluster)
	w := e.adopt(model("model", 4, 2))
	w.load(100)
	w.autoscale(1, 8, selectPolicies(maxChange, maxChange))
	w.awaitComputed(100)
	before := w.hpa()
	old := w.revisions()
	w.edit(image("v2"))
	mustWarn(t, w.initialize("r1", policy("25%", "50%", "100%")).GetWarnings(), "AutoscalerHeld", "HorizontalPodAutoscaler model", "not remove")
	h := w.hpa()
	assert.Empty(t, h.Annotations[heldAnnotation], "held before the first batch: %v", h.Annotations)
	w.upgrade("r1", 1)
	w.mustMatch(w.awaitState(pb.State_STATE_READY), want{pb.State_STATE_READY, 2, 2, 2, 4, 6, 33})
	w.mustHoldScaleDown()

	w.load(20) // the other requests go to the canary
	w.awaitComputed(20)
	w.awaitLimited()
	w.mustMatch(w.context(), want{pb.State_STATE_READY, 2, 2, 2, 4, 6, 33})

	w.load(200)
	w.awaitReplicas(8)
	w.mustBeAt(old)
	w.awaitMatch(want{pb.State_STATE_READY, 4, 4, 4, 8, 12, 33})

	w.load(20)
	w.awaitLimited()
	w.mustMatch(w.context(), want{pb.State_STATE_READY, 4, 4, 4, 8, 12, 33})
	w.editAutoscaler(bounds(1, 4))
	w.awaitReplicas(4)
	w.mustBeAt(old)
	w.awaitMatch(want{pb.State_STATE_READY, 2, 2, 2, 4, 6, 33})

	w.load(100)
	w.finalize("r1", promote)
	w.mustRun("v2")
	w.mustBeIdle()
	bounds(1, 4)(before)
	w.mustRestoreAutoscaler(before)
	assert.Equal(t, 2, w.autoscalerWrites(), "writes of the autoscaler")
}

// Proves: An autoscaler: every style and end, edits, kills, KEDA, scaling to 0.
func TestAutoscalerPartition(t *testing.T) {
	t.Parallel()
	e := autoscaled(t)
	suite.ServePodMetrics(t, e.cluster)
	w := e.adopt(model("model", 4, 2))
	w.load(100)
	w.autoscale(1, 8, nil)
	before := w.hpa()
	old := w.revisions()
	w.edit(image("v2"))
	mustWarn(t, w.initialize("r1", inPlace("25%", "50%", "100%")).GetWarnings(), "AutoscalerHeld")
	w.editAutoscaler(bounds(6, 8))
	w.awaitReplicas(6)
	w.mustBeAt(old)
	w.editAutoscaler(bounds(1, 4))
	w.awaitReplicas(4)
	w.mustBeAt(old)
	w.upgrade("r1", 1)
	w.mustMatch(w.awaitState(pb.State_STATE_READY), want{pb.State_STATE_READY, 2, 2, 2, 2, 4, 50})
	w.mustHoldScaleDown()
	w.editAutoscaler(bounds(1, 2)) // LWS removes the highest indices, which are the updated groups
	w.awaitReplicas(2)
	w.awaitMatch(want{pb.State_STATE_READY, 1, 1, 1, 1, 2, 50})
	w.finalize("r1", rollback)
	w.mustRun("v1")
	w.mustBeIdle()
	bounds(1, 2)(before)
	w.mustRestoreAutoscaler(before)
}

// A person scales the workload to 0 and up again in mid-release. LeaderWorkerSet starts the template in the spec, which is
// not released. The release fails at once, and an abort restores the stable template.
//
// Proves (test, canary): Scaling in mid-release; to 0 and up again: it fails, and an abort restores the revision.
// Proves: Scaled to 0 in place.
func TestScaledToZero(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]*pb.ReleasePolicy{"canary": policy("25%", "50%", "100%"), "partition": inPlace("25%", "50%", "100%")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := autoscaled(t).adopt(model("model", 4, 2))
			w.observer.waive(ruleBatch) // LeaderWorkerSet starts the unreleased groups
			w.observer.Waive()
			w.edit(image("v2"))
			w.initialize("r1", release)
			w.upgrade("r1", 0)
			w.awaitState(pb.State_STATE_READY)
			w.edit(groups(0))
			w.await("the release has failed", func(c *pb.BatchContext) bool {
				return c.GetState() == pb.State_STATE_FAILED && c.GetReason() == "ScaledToZero"
			})
			w.eventually("the StatefulSet has forgotten the stable revision", func(ctx context.Context) error {
				s, err := w.kube.AppsV1().StatefulSets(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
				if err == nil && s.Status.CurrentRevision != s.Status.UpdateRevision {
					err = fmt.Errorf("its status is %s", asJSON(s.Status))
				}
				return err
			})
			w.edit(groups(6))
			c := w.await("the groups run the unreleased revision", func(c *pb.BatchContext) bool {
				assert.NotEqual(t, pb.State_STATE_READY, c.GetState(), "READY: %v", c)
				return c.GetReason() == "UnreleasedRevision" && strings.Contains(c.GetMessage(), "all 6 groups of model")
			})
			assert.Equal(t, pb.State_STATE_FAILED, c.GetState(), "state %v", c.GetState())
			w.awaitReady()
			w.mustContain(c.GetMessage(), c.GetUpdateRevision(), "Abort to restore the template of revision "+c.GetStableRevision())
			w.finalize("r1", rollback)
			w.mustRun("v1")
			w.mustBeIdle()
		})
	}
}

func groups(n int32) func(*lws.LeaderWorkerSet) {
	return func(s *lws.LeaderWorkerSet) { s.Spec.Replicas = &n }
}

// mustHoldScaleDown fails unless the driver holds the HorizontalPodAutoscaler from removing groups, and only from that.
func (w *workload) mustHoldScaleDown() {
	w.t.Helper()
	b := w.hpa().Spec.Behavior
	require.False(w.t, b == nil || ptr.Deref(b.ScaleDown.SelectPolicy, "") != disabled || ptr.Deref(b.ScaleUp.SelectPolicy, "") == disabled,
		"not held from removing groups: %s", asJSON(b))
}

// awaitLimited waits until the autoscaler would remove groups, but for the hold.
func (w *workload) awaitLimited() {
	w.t.Helper()
	w.eventually("the autoscaler is limited", func(context.Context) error {
		for _, c := range w.hpa().Status.Conditions {
			if c.Type == autoscalingv2.ScalingLimited && c.Reason == "ScaleDownLimit" {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %s", asJSON(w.hpa().Status.Conditions))
	})
}

func (w *workload) awaitMatch(want want) {
	w.t.Helper()
	w.await(fmt.Sprintf("the context matches %+v", want), func(c *pb.BatchContext) bool { return wantOf(c) == want })
}

func checkHeld(h *autoscalingv2.HorizontalPodAutoscaler) error {
	if !scalingDisabled(h) {
		return fmt.Errorf("not held: %v %s", h.Annotations, asJSON(h.Spec.Behavior))
	}
	return nil
}

func (w *workload) awaitAutoscalerRestored() {
	w.t.Helper()
	w.eventually("the autoscaler is restored", func(context.Context) error {
		if note := w.hpa().Annotations[heldAnnotation]; note != "" {
			return fmt.Errorf("it has annotation %s: %s", heldAnnotation, note)
		}
		return nil
	})
}

// removeRecord removes the record, as a user might by hand.
func (w *workload) removeRecord() {
	w.t.Helper()
	w.observer.waive(ruleIntent)
	w.edit(func(s *lws.LeaderWorkerSet) { delete(s.Annotations, recordAnnotation) })
}

// revisions returns the revisions of the workload's own groups.
func (w *workload) revisions() []string {
	w.t.Helper()
	var all []string
	for _, p := range w.stablePods() {
		if r := revisionOf(&p); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// mustBeAt fails unless every pod of the workload is at one of the revisions.
func (w *workload) mustBeAt(revisions []string) {
	w.t.Helper()
	for name, p := range w.stablePods() {
		r := revisionOf(&p)
		assert.True(w.t, slices.Contains(revisions, r), "pod %s is at %s, want %v", name, r, revisions)
	}
}

// autoscalerWrites counts the drivers' writes of autoscalers in this namespace.
func (w *workload) autoscalerWrites() int {
	n := 0
	for _, write := range w.writes() {
		if strings.Contains(write, "horizontalpodautoscalers") || strings.Contains(write, "scaledobjects") {
			n++
		}
	}
	return n
}

// mustHaveEvents waits for events with these reasons about the workload.
func (w *workload) mustHaveEvents(reasons ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprint("events ", reasons), func(ctx context.Context) error {
		events, err := w.events(ctx, w.name)
		if err != nil {
			return err
		}
		for _, reason := range reasons {
			if !slices.ContainsFunc(events, func(e eventsv1.Event) bool { return e.Reason == reason }) {
				return fmt.Errorf("no event %s", reason)
			}
		}
		return nil
	})
}

func mustWarn(t testing.TB, warnings []*pb.Warning, code string, words ...string) {
	t.Helper()
	for _, w := range warnings {
		if w.GetCode() != code {
			continue
		}
		for _, word := range words {
			assert.Contains(t, w.GetMessage(), word)
		}
		return
	}
	t.Errorf("no warning %s: %v", code, warnings)
}
