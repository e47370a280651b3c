// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// keep adds a finalizer to a pod, as a lost node would keep it: once deleted, it stays Terminating. It returns false while the pod
// does not exist.
func (w *workload) keep(ctx context.Context, pod string) error {
	return w.setPodFinalizers(ctx, pod, `["test.lockstep.dev/lost-node"]`)
}

// removePodFinalizer undoes keep.
func (w *workload) removePodFinalizer(pod string) {
	w.t.Helper()
	err := w.setPodFinalizers(w.t.Context(), pod, "null")
	require.False(w.t, err != nil && !apierrors.IsNotFound(err), err)
}

func (w *workload) setPodFinalizers(ctx context.Context, pod, finalizers string) error {
	patch := fmt.Sprintf(`{"metadata":{"finalizers":%s}}`, finalizers)
	_, err := w.kube.CoreV1().Pods(w.namespace).Patch(ctx, pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// A pod of the canary can't be deleted. After the progress deadline the release ends without it and names it, and a next release
// runs beside it. Only a canary of the same name has to wait, which fails with the pod's name.
//
// Proves: Safety rule 8: waits for leftover pods, LWS and routing, and recovery once the cause is removed.
func TestWaitLeftoverPod(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.observer.waive(ruleOneCanary)
	w := e.adopt(model("model", 2, 2))
	w.edit(image("v2"))
	p := policy("100%")
	p.ProgressDeadline = seconds(8)
	w.initialize("r1", p)
	canary := w.upgrade("r1", 0).GetContext().GetCanaryWorkload()
	pod := canary + "-0"
	require.NoError(t, w.keep(t.Context(), pod))
	t.Cleanup(func() { _ = w.setPodFinalizers(context.Background(), pod, "null") })
	_, err := w.tryFinalize("r1", rollback, nil)
	require.NoError(t, err)
	w.await("the pod is terminating", func(c *pb.BatchContext) bool {
		return c.GetReason() == "CanaryTerminating" && strings.Contains(c.GetMessage(), "pod "+pod+": is being deleted on node ")
	})
	_, err = w.tryInitialize("r2", p)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, plugin.Reason(err), "a release begins while the canary terminates: %v", err)
	c := w.awaitState(pb.State_STATE_ROLLED_BACK)
	w.mustContain(c.GetMessage(), canary+" receives no requests", "pod "+pod+": is being deleted on node ", "force the deletion (kubectl -n "+w.namespace+" delete pod "+pod+" --force)")

	_, err = w.tryInitialize("r2", p)
	require.NoError(t, err)
	c = w.awaitState(pb.State_STATE_FAILED)
	assert.Equal(t, "CleanupDeadlineExceeded", c.GetReason(), "a canary of the same name: %s", show(c))
	w.mustContain(c.GetMessage(), "the earlier "+canary, pod, "otherwise abort")
	w.finalize("r2", rollback)

	w.edit(image("v3"))
	w.initialize("r3", p)
	next := w.upgrade("r3", 0).GetContext().GetCanaryWorkload()
	assert.NotEqual(t, canary, next, "the next canary is named %s, too", next)
	done := w.finalize("r3", promote).GetContext()
	w.mustContain(done.GetMessage(), canary+" receives no requests")
	w.mustRun("v3")
	w.removePodFinalizer(pod)
	w.eventually("nothing is left", func(ctx context.Context) error {
		c, err := w.tryContext(ctx)
		if err == nil && (c.GetState() != pb.State_STATE_COMPLETED || strings.Contains(c.GetMessage(), canary)) {
			err = fmt.Errorf("%s", show(c))
		}
		return err
	})
	w.eventually("the leftover is deleted", func(ctx context.Context) error { return w.gone(ctx, canary) })
	w.mustBeIdle()
}

// A surge group of a promotion can't be deleted. The promotion fails with the name of its pod, since a group that is lost under the
// hold would be recreated at the old revision; once the pod is gone it completes, and a lost group keeps its revision.
//
// Proves: Safety rule 8: waits for leftover pods, LWS and routing, and recovery once the cause is removed.
func TestWaitSurgePod(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2, rolling("0", "1", -1), annotated(cluster.AnnotationWarmup, "1s")))
	w.edit(image("v2"))
	p := policy("50%")
	p.ProgressDeadline = seconds(8)
	w.initialize("r1", p)
	w.upgrade("r1", 0)
	const pod = "model-2"
	t.Cleanup(func() { _ = w.setPodFinalizers(context.Background(), pod, "null") })
	_, err := w.tryFinalize("r1", promote, nil)
	require.NoError(t, err)
	w.eventually("the surge group exists", func(ctx context.Context) error { return w.keep(ctx, pod) })
	c := w.await("the promotion fails with the pod's name", func(c *pb.BatchContext) bool {
		return c.GetState() == pb.State_STATE_FAILED && strings.Contains(c.GetMessage(), "Pod "+pod)
	})
	assert.True(t, c.GetReason() == "CleanupDeadlineExceeded" && c.GetIntent() == promote, "%s, intent %s", show(c), c.GetIntent())
	w.removePodFinalizer(pod)
	w.awaitState(pb.State_STATE_COMPLETED)
	suite.Delete(t, w.kube.CoreV1().Pods(w.namespace), "model-0")
	w.awaitReady()
	w.mustRun("v2")
	w.mustBeIdle()
}

// refuseStatefulSets has the API server refuse changes of the workload's StatefulSets until permit is called, so that LWS can't
// apply a change and never observes it.
func (w *workload) refuseStatefulSets() (permit func()) {
	w.t.Helper()
	policies, ctx := w.kube.AdmissionregistrationV1(), context.WithoutCancel(w.t.Context())
	name := "refuse-statefulsets-" + w.namespace
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec.Validations = []admissionv1.Validation{{Expression: "false", Message: "refused by a test"}}
	rule := admissionv1.NamedRuleWithOperations{}
	rule.APIGroups, rule.APIVersions, rule.Resources = []string{"apps"}, []string{"v1"}, []string{"statefulsets"}
	rule.Operations = []admissionv1.OperationType{admissionv1.Update}
	policy.Spec.MatchConstraints = &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.namespace}},
		ResourceRules:     []admissionv1.NamedRuleWithOperations{rule},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	binding.Spec = admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}
	_, err := policies.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{})
	require.NoError(w.t, err)
	_, err = policies.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{})
	require.NoError(w.t, err)
	remove := func() {
		for _, err := range []error{
			policies.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
			policies.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}),
		} {
			assert.False(w.t, err != nil && !apierrors.IsNotFound(err), err)
		}
	}
	w.t.Cleanup(remove)
	inForce := func(want bool) {
		w.eventually(fmt.Sprintf("StatefulSets are refused: %t", want), func(ctx context.Context) error {
			_, err := w.kube.AppsV1().StatefulSets(w.namespace).Patch(ctx, w.name, types.MergePatchType, []byte(`{"spec":{"replicas":11}}`),
				metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			if refused := err != nil && strings.Contains(err.Error(), "refused by a test"); refused != want {
				return fmt.Errorf("the answer of a dry run is %q", fmt.Sprint(err))
			}
			return nil
		})
	}
	inForce(true)
	return func() {
		remove()
		inForce(false)
	}
}

// LWS can't apply a new template and never observes it, so the hold is not known to be in force. The release fails and names the
// controller; once LWS can write again, it continues.
//
// Proves: Safety rule 8: waits for leftover pods, LWS and routing, and recovery once the cause is removed.
func TestWaitForLWS(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2))
	w.edit(image("v2"))
	p := inPlace("50%", "100%")
	p.ProgressDeadline = seconds(8)
	w.initialize("r1", p)
	w.upgrade("r1", 0)
	permit := w.refuseStatefulSets()
	w.edit(image("v3"))
	c := w.awaitState(pb.State_STATE_FAILED)
	assert.Equal(t, "ProgressDeadlineExceeded", c.GetReason(), show(c))
	w.mustContain(c.GetMessage(), "once LeaderWorkerSet has observed the hold", "kubectl -n lws-system get pods", "otherwise abort")
	permit()
	w.awaitState(pb.State_STATE_READY, pb.State_STATE_HOLDING)
	w.finalize("r1", rollback)
	w.mustBeIdle()
}

// The user's Service is deleted in mid-release, so a batch's requests can't be routed. The release fails, and continues once the
// Service exists again.
//
// Proves: Safety rule 8: waits for leftover pods, LWS and routing, and recovery once the cause is removed.
func TestWaitForTraffic(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2))
	w.expose()
	w.edit(image("v2"))
	p := w.withTraffic(policy("50%", "100%"))
	p.ProgressDeadline = seconds(8)
	w.initialize("r1", p)
	services := w.kube.CoreV1().Services(w.namespace)
	kept, err := services.Get(t.Context(), w.name+"-http", metav1.GetOptions{})
	if err == nil {
		err = services.Delete(t.Context(), kept.Name, metav1.DeleteOptions{})
	}
	require.NoError(t, err)
	_, err = w.tryUpgrade("r1", 0, nil)
	require.NoError(t, err)
	c := w.awaitState(pb.State_STATE_FAILED)
	assert.Equal(t, "TrafficDeadlineExceeded", c.GetReason(), show(c))
	w.mustContain(c.GetMessage(), "Service "+kept.Name, "otherwise abort")
	kept = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: kept.Name},
		Spec:       corev1.ServiceSpec{Ports: kept.Spec.Ports, Selector: map[string]string{lws.SetNameLabelKey: w.name, lws.WorkerIndexLabelKey: "0"}},
	}
	for i := range kept.Spec.Ports {
		kept.Spec.Ports[i].NodePort = 0
	}
	suite.Create(t, services, kept)
	w.awaitState(pb.State_STATE_READY)
	w.finalize("r1", rollback)
	w.mustBeIdle()
}
