// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwstest

import (
	"encoding/json"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// VLLM is the key of StableWorkload.
var VLLM = types.NamespacedName{Namespace: "default", Name: "vllm"}

// Noon is the time at which the tests observe.
var Noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// StableWorkload returns an adopted workload of 4 groups of 2 pods. Its record is empty, which is invalid.
func StableWorkload() *lws.LeaderWorkerSet {
	return &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: "vllm", Namespace: "default", UID: "stable", Generation: 3,
			Labels: map[string]string{
				"team": "serving", "app.kubernetes.io/instance": "argo-app", "app.kubernetes.io/managed-by": "Helm",
				"helm.toolkit.fluxcd.io/name": "x", "kustomize.toolkit.fluxcd.io/name": "x",
			},
			Annotations: map[string]string{
				"owner":                                          "ml",
				corev1.LastAppliedConfigAnnotation:               "{}",
				"argocd.argoproj.io/tracking-id":                 "x",
				"meta.helm.sh/release-name":                      "x",
				record.RecordAnnotation:                          "{}",
				"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack",
			},
			Finalizers: []string{"others.example/keep"},
		},
		Spec: lws.LeaderWorkerSetSpec{
			Replicas: ptr.To[int32](4),
			LeaderWorkerTemplate: lws.LeaderWorkerTemplate{
				Size: ptr.To[int32](2),
				WorkerTemplate: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "vllm"}},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "vllm:2"}}},
				},
			},
			RolloutStrategy: lws.RolloutStrategy{
				Type: lws.RollingUpdateStrategyType, RollingUpdateConfiguration: ptr.To(record.Hold()),
			},
		},
	}
}

// Unrecorded returns StableWorkload as its user created it, without anything of Lockstep.
func Unrecorded() *lws.LeaderWorkerSet {
	w := StableWorkload()
	delete(w.Annotations, record.RecordAnnotation)
	w.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Native(record.Hold()))
	return w
}

// WithRecord writes a record to a workload, and returns the workload.
func WithRecord(t testing.TB, w *lws.LeaderWorkerSet, r record.Record) *lws.LeaderWorkerSet {
	t.Helper()
	value, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	w.Annotations[record.RecordAnnotation] = value
	return w
}

// InPhase returns StableWorkload with a release from revision "old" to "new".
func InPhase(t testing.TB, phase record.Phase) *lws.LeaderWorkerSet {
	t.Helper()
	policy, err := record.EncodePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "50%", "100%"}})
	if err != nil {
		t.Fatal(err)
	}
	return WithRecord(t, StableWorkload(), record.Record{Saved: record.Native(record.Hold()), Release: &record.Release{
		ID: "r1", Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: phase, StartedAt: Noon, PhaseAt: Noon,
	}})
}

// WithImage returns StableWorkload with another image.
func WithImage(image string) *lws.LeaderWorkerSet {
	w := StableWorkload()
	w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image = image
	return w
}

// Rolling returns a rolling update configuration.
func Rolling(partition int32, maxUnavailable, maxSurge string) lws.RollingUpdateConfiguration {
	return lws.RollingUpdateConfiguration{
		Partition: ptr.To(partition), MaxUnavailable: intstr.Parse(maxUnavailable), MaxSurge: intstr.Parse(maxSurge),
	}
}

// Canary returns the canary of a workload for revision "new", with one group.
func Canary(t testing.TB, stable *lws.LeaderWorkerSet) *lws.LeaderWorkerSet {
	t.Helper()
	target, err := (&record.Target{Groups: "25%", At: Noon}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	c := &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: record.CanaryName(stable.Name, stable.Name, "new"), Namespace: stable.Namespace, UID: "canary", Generation: 1,
			Labels: traffic.WithoutToolMetadata(stable.Labels), Annotations: traffic.WithoutToolMetadata(stable.Annotations),
			Finalizers:      []string{record.Finalizer},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(stable, lws.GroupVersion.WithKind("LeaderWorkerSet"))},
		},
		Spec: *stable.Spec.DeepCopy(),
	}
	c.Labels[record.RoleLabel], c.Labels[record.StableLabel], c.Labels[record.RevisionLabel] = record.RoleCanary, stable.Name, "new"
	c.Annotations[record.TargetAnnotation] = target
	c.Annotations[record.OwnerAnnotation] = stable.Namespace + "/" + string(stable.UID)
	c.Spec.Replicas = ptr.To[int32](1)
	c.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Native(record.Hold()))
	return c
}

// Revision returns LWS's own ControllerRevision of a workload's template.
func Revision(t testing.TB, w *lws.LeaderWorkerSet, hash string) *appsv1.ControllerRevision {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"spec": map[string]any{
		"leaderWorkerTemplate": patchOf(t, w.Spec.LeaderWorkerTemplate),
		"networkConfig":        map[string]any{"subdomainPolicy": "Shared", "$patch": "replace"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: w.Name + "-" + hash, Namespace: w.Namespace, UID: "lws-owned",
			Labels:          map[string]string{lws.SetNameLabelKey: w.Name, lws.RevisionKey: hash},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w, lws.GroupVersion.WithKind("LeaderWorkerSet"))},
		},
		Data: runtime.RawExtension{Raw: raw}, Revision: 1,
	}
}

// patchOf returns a value as a strategic merge patch that replaces it.
func patchOf(t testing.TB, value any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	out["$patch"] = "replace"
	return out
}

// HistoryRevision returns a snapshot in the history of StableWorkload, with a template of this image.
func HistoryRevision(t testing.TB, e plan.Entry, image string) *appsv1.ControllerRevision {
	t.Helper()
	cr, err := history.Object(StableWorkload(), e, record.TemplateOf(WithImage(image)))
	if err != nil {
		t.Fatal(err)
	}
	return cr
}

// HandedOver returns the successor of VLLM, after a handover.
func HandedOver(t testing.TB, change ...func(*lws.LeaderWorkerSet, *record.Record)) *lws.LeaderWorkerSet {
	t.Helper()
	w := InPhase(t, record.Promoted)
	w.Name, w.UID = "vllm-new", "successor"
	rec, err := record.DecodeRecord(w.Annotations[record.RecordAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	rec.UID, rec.Workload = w.UID, "vllm"
	w.Labels = map[string]string{record.WorkloadLabel: "vllm"}
	for _, f := range change {
		f(w, rec)
	}
	return WithRecord(t, w, *rec)
}

// AtRest returns a workload under hold without a release, and a client with the snapshots and LWS's revisions of it:
// "new", which is the template in its spec, and "old".
func AtRest(t testing.TB, snapshots ...runtime.Object) (*fake.Clientset, *lws.LeaderWorkerSet) {
	t.Helper()
	w := WithRecord(t, StableWorkload(), record.Record{UID: "stable", Saved: record.Native(record.Hold())})
	return fake.NewClientset(append(snapshots, Revision(t, w, "new"), Revision(t, WithImage("vllm:1"), "old"))...), w
}

// HPA returns an HPA that scales a workload.
func HPA(target string, change ...func(*autoscalingv2.HorizontalPodAutoscaler)) *autoscalingv2.HorizontalPodAutoscaler {
	h := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: VLLM.Namespace, Name: "scale", UID: "hpa", ResourceVersion: "1"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: target},
			MaxReplicas:    4,
		},
	}
	for _, c := range change {
		c(h)
	}
	return h
}

// HeldFor returns an option: the HPA is held for a workload.
func HeldFor(workload string) func(*autoscalingv2.HorizontalPodAutoscaler) {
	return func(h *autoscalingv2.HorizontalPodAutoscaler) {
		off := &autoscalingv2.HPAScalingRules{SelectPolicy: ptr.To(autoscalingv2.DisabledPolicySelect)}
		h.Annotations = map[string]string{autoscaler.NoteAnnotation: `{"hold":"all","workload":"` + workload + `","user":{"scaleUp":"Max"}}`}
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: off, ScaleDown: off}
	}
}
