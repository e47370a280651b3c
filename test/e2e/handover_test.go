// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	knownLabel   = "lockstep.dev/workload"
	servingLabel = "lockstep.dev/serving"
)

// handover makes a policy blue-green with a promotion in which the second set becomes the workload. delay < 0: longer than any
// test.
func handover(p *pb.ReleasePolicy, delay float64) *pb.ReleasePolicy {
	p.Style, p.BlueGreen = pb.Style_STYLE_BLUE_GREEN, &pb.BlueGreenPolicy{Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT}
	switch {
	case delay < 0:
		p.BlueGreen.ScaleDownDelay = seconds(3600)
	case delay > 0:
		p.BlueGreen.ScaleDownDelay = seconds(delay)
	}
	return p
}

// withTraffic makes a policy route requests through the objects that expose creates.
func (w *workload) withTraffic(p *pb.ReleasePolicy) *pb.ReleasePolicy {
	p.Traffic = &pb.TrafficPolicy{StableService: w.name + "-http", Ingresses: []string{w.name}}
	return p
}

// successor returns the workload that is known by this name, the object itself or its successor.
func (w *workload) successor() *workload {
	w.t.Helper()
	list, err := w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace).List(w.t.Context(), metav1.ListOptions{LabelSelector: knownLabel + "=" + w.name})
	if err != nil || len(list.Items) != 1 {
		w.t.Fatalf("%d workloads are known as %s (%v)", len(list.Items), w.name, err)
	}
	return &workload{env: w.env, driver: w.driver, name: list.Items[0].Name}
}

// mustBeHandedOver fails unless another object is the workload, and the first object and all marks of the release are deleted.
func (w *workload) mustBeHandedOver() *workload {
	w.t.Helper()
	s := w.successor()
	assert.NoError(w.t, w.gone(w.t.Context(), w.name), w.name)
	s.mustBeIdle()
	w.eventually("nothing is left of "+w.name, w.leftovers)
	o := s.get()
	for _, label := range []string{roleLabel, stableLabel, "lockstep.dev/revision"} {
		if v := o.Labels[label]; v != "" {
			w.t.Errorf("%s has label %s=%s", s.name, label, v)
		}
	}
	if len(o.OwnerReferences) > 0 || o.Annotations[targetAnnotation] != "" || o.Annotations["lockstep.dev/traffic"] != "" {
		w.t.Errorf("left on %s: owners %v, annotations %v", s.name, o.OwnerReferences, o.Annotations)
	}
	for name, p := range s.stablePods() {
		assert.Empty(w.t, p.Labels[servingLabel], "pod %s still has label %s", name, servingLabel)
	}
	return s
}

// service returns the user's Service.
func (w *workload) service() *corev1.Service {
	w.t.Helper()
	s := suite.Get(w.t.Context(), w.t, w.kube.CoreV1().Services(w.namespace), w.name+"-http")
	return s
}

// mustServe fails unless the user's Service selects the leaders of a workload, and the canary Service and Ingress are deleted.
func (w *workload) mustServe(name string) {
	w.t.Helper()
	s := w.service()
	assert.True(w.t, s.Spec.Selector[lws.SetNameLabelKey] == name && len(s.Spec.Selector) == 2,
		"the Service selects %v, not %s", s.Spec.Selector, name)
	assert.Empty(w.t, s.Annotations["lockstep.dev/isolation"], "the Service still has the isolation's annotation")
	_, err := w.kube.CoreV1().Services(w.namespace).Get(w.t.Context(), s.Name+"-canary", metav1.GetOptions{})
	assert.NoError(w.t, suite.Gone(err), "canary Service")
	_, err = w.kube.NetworkingV1().Ingresses(w.namespace).Get(w.t.Context(), w.name+"-canary", metav1.GetOptions{})
	assert.NoError(w.t, suite.Gone(err), "canary Ingress")
}

// The second set becomes the workload, found by the old name and by its own, with the history, the Service and the autoscaler;
// and so does the second set of the next release.
//
// Proves (test): Handover: the second set becomes the workload.
// Proves (test): An Ingress: the canary's is created, weighed and deleted, and the Service is restored.
func TestHandover(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 3, 2))
	w.expose()
	w.autoscale(3, 3, selectPolicies(maxChange, minChange))
	before := w.hpa()
	w.edit(image("v2"))
	p := handover(w.withTraffic(policy("34%", "100%")), 2)
	mustWarn(t, w.initialize("r1", p).GetWarnings(), "HandoverReplacesObject", "model")
	green := w.upgrade("r1", 0).GetContext().GetCanaryWorkload()
	w.upgrade("r1", 1)
	groups := w.podsOf(green)
	c := w.finalize("r1", promote).GetContext()
	assert.True(t, c.GetState() == pb.State_STATE_COMPLETED && c.GetReplicas() == 3 && c.GetUpdatedReady() == 3 && c.GetTotal() == 3 && c.GetWorkload().GetName() == green,
		"promoted: %s", show(c))
	s := w.mustBeHandedOver()
	assert.Equal(t, green, s.name, "%s serves, not %s", s.name, green)
	s.sameGroups(groups)
	w.mustServe(green)
	h := w.hpa()
	assert.True(t, h.Spec.ScaleTargetRef.Name == green && h.Annotations[heldAnnotation] == "" && asJSON(h.Spec.Behavior) == asJSON(before.Spec.Behavior),
		"the autoscaler is %v %s", h.Annotations, asJSON(h.Spec))
	w.mustHaveHistory("2 v2 r1 COMPLETED stable current", "1 v1 -")
	s.mustHaveHistory("2 v2 r1 COMPLETED stable current", "1 v1 -")
	w.mustChangeNothing("Finalize", w.finalizing("r1", promote))
	_, err := w.tryFinalize("r1", rollback, long)
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED)

	// The next release, by the old name: an undo, with the driver killed before the promotion.
	w.undo("", configured)
	w.initialize("r2", handover(w.withTraffic(policy("100%")), 0))
	third := w.upgrade("r2", 0).GetContext().GetCanaryWorkload()
	assert.True(t, len(third) <= len(green) && third != green, "the names are model, %s and %s", green, third)
	w.driver.Kill()
	w.driver.Restart()
	w.finalize("r2", promote)
	s = w.mustBeHandedOver()
	assert.Equal(t, third, s.name, "%s serves, not %s", s.name, third)
	s.mustRun("v1")
	w.mustServe(third)
	assert.Equal(t, third, w.hpa().Spec.ScaleTargetRef.Name, "the autoscaler scales")
	w.mustHaveHistory("3 v1 r2 COMPLETED stable current", "2 v2 r1 COMPLETED")

	// Other styles work as before, and Disown leaves nothing.
	s.edit(image("v3"))
	w.initialize("r3", w.withTraffic(policy("50%", "100%")))
	w.upgrade("r3", 0)
	w.finalize("r3", promote)
	s.mustRun("v3")
	s.mustBeIdle()
	w.mustServe(third)
	w.disown(w.ref())
	if o := s.get(); o.Labels[knownLabel] != "" || o.Annotations[recordAnnotation] != "" {
		t.Errorf("after Disown: labels %v, annotations %v", o.Labels, o.Annotations)
	}
	_, err = w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, "model")
}

// While the workload's own groups are on standby, one write returns the requests to them, whether a host or a template change
// rolls back, and across a restart of the driver.
//
// Proves: Handover: rolled back, second set deleted by hand and created again, refused.
func TestHandoverRolledBack(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, test := range []struct {
		name string
		back func(*workload)
	}{
		{"finalize", func(w *workload) { w.finalize("r1", rollback) }},
		{"finalize-killed", func(w *workload) {
			w.driver.Kill()
			w.driver.Restart()
			w.await("the groups are still on standby", func(c *pb.BatchContext) bool { return c.GetReason() == "WaitingForScaleDownDelay" })
			w.finalize("r1", rollback)
		}},
		{"template", func(w *workload) {
			w.edit(image("v1"))
			w.awaitState(rolledBack)
		}},
		{"third-template", func(w *workload) {
			w.edit(image("v3"))
			w.await("the release starts over", func(c *pb.BatchContext) bool {
				return c.GetState() == pb.State_STATE_HOLDING && c.GetTarget() == ""
			})
			w.finalize("r1", rollback)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := e.in(t).adopt(model(test.name, 2, 2, annotated(cluster.AnnotationStartup, "200ms")))
			w.expose()
			w.autoscale(2, 2, selectPolicies(maxChange, minChange))
			before, groups := w.hpa(), w.stablePods()
			w.edit(image("v2"))
			w.initialize("r1", handover(w.withTraffic(policy("100%")), -1))
			w.startFinalize("r1", promote)
			c := w.await("the groups are on standby", func(c *pb.BatchContext) bool { return c.GetReason() == "WaitingForScaleDownDelay" })
			assert.True(t, c.GetState() == pb.State_STATE_PROMOTING && c.GetTrafficWeight() == 100 && c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED && c.GetStableReady() == 2 && c.GetUpdatedReady() == 2,
				"on standby: %s", show(c))
			w.mustHoldAutoscaler()
			w.sameGroups(groups)
			test.back(w)
			w.sameGroups(groups)
			w.mustBeIdle()
			w.mustServe(w.name)
			w.awaitAutoscalerRestored()
			w.mustRestoreAutoscaler(before)
		})
	}
}

// The second set is deleted by hand while the workload's own groups scale down: they are recreated, then another second set is
// created and becomes the workload.
//
// Proves: Handover: rolled back, second set deleted by hand and created again, refused.
func TestHandoverSuccessorDeleted(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2, annotated(cluster.AnnotationTermination, "3s")))
	w.edit(image("v2"))
	w.initialize("r1", handover(policy("100%"), 0))
	green := w.upgrade("r1", 0).GetContext().GetCanaryWorkload()
	w.startFinalize("r1", promote)
	w.await("the groups scale down", func(c *pb.BatchContext) bool { return c.GetReason() == "StableScalingDown" })
	w.observer.waive(ruleIntent) // of the test's own deletion
	w.remove(green, metav1.DeletePropagationBackground)
	w.finalize("r1", promote)
	s := w.mustBeHandedOver()
	s.awaitReady()
	s.mustRun("v2")
}

// A handover that a GitOps tool would undo, by its Service, is refused before the first write.
//
// Proves: Handover: rolled back, second set deleted by hand and created again, refused.
func TestHandoverRefused(t *testing.T) {
	t.Parallel()
	w := newEnv(t).deploy(model("model", 2, 1))
	w.expose()
	s := w.service()
	s.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "serving"}
	if _, err := w.kube.CoreV1().Services(w.namespace).Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := w.tryInitialize("r1", handover(w.withTraffic(policy("100%")), 0))
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE, "kustomize.toolkit.fluxcd.io/name", "model-http")
	w.mustBeUntouched()
}

// A ScaledObject is pointed at the successor in the same write that resumes it.
//
// Proves: Handover: rolled back, second set deleted by hand and created again, refused.
func TestHandoverScaledObject(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	require.NoError(t, e.cluster.InstallKEDA(t.Context()))
	w := e.adopt(model("model", 2, 1))
	w.keda(nil)
	w.edit(image("v2"))
	w.initialize("r1", handover(policy("100%"), 0))
	w.awaitPaused("true", true)
	w.finalize("r1", promote)
	s := w.mustBeHandedOver()
	w.awaitPaused("", false)
	object := suite.GetObject(t.Context(), t, w.scaledObjects(), w.name)
	to, _, _ := unstructured.NestedString(object.Object, "spec", "scaleTargetRef", "name")
	assert.Equal(t, s.name, to, "it scales %q, not %s", to, s.name)
}
