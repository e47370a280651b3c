// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func stableWorkload() *lws.LeaderWorkerSet {
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

func TestNewCanary(t *testing.T) {
	s := &Snapshot{Observation: plan.Observation{Key: vllm}, StableObject: stableWorkload()}
	s.Record = &record.Record{Saved: lws.RollingUpdateConfiguration{
		Partition: ptr.To[int32](3), MaxUnavailable: intstr.FromString("50%"), MaxSurge: intstr.FromInt32(1),
	}}
	s.Policy = record.Policy{LeaderLabels: map[string]string{"canary": "true"}}
	before := s.StableObject.DeepCopy()
	c, err := newCanary(s, plan.CreateCanary{
		Name: "vllm-abc123", Revision: "abc12345", Replicas: 1, Target: &record.Target{Groups: "25%", At: noon},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, s.StableObject); diff != "" {
		t.Errorf("the cached object was modified:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{
		"team": "serving", record.RoleLabel: record.RoleCanary, record.StableLabel: "vllm", record.RevisionLabel: "abc12345",
	}, c.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{
		"owner": "ml", "leaderworkerset.sigs.k8s.io/exclusive-topology": "rack",
		record.TargetAnnotation: `{"groups":"25%","at":"2026-11-20T12:00:00Z"}`,
	}, c.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if len(c.Finalizers) != 1 || !HasFinalizer(c) || metav1.GetControllerOf(c).UID != "stable" {
		t.Errorf("finalizers %v, owners %v", c.Finalizers, c.OwnerReferences)
	}
	want := lws.RollingUpdateConfiguration{
		Partition: ptr.To[int32](0), MaxUnavailable: intstr.FromInt32(1), MaxSurge: intstr.FromInt32(0),
	}
	if diff := cmp.Diff(&want, c.Spec.RolloutStrategy.RollingUpdateConfiguration); diff != "" {
		t.Errorf("rolling update configuration (-want +got):\n%s", diff)
	}
	leader := c.Spec.LeaderWorkerTemplate.LeaderTemplate
	if leader == nil || leader.Labels["canary"] != "true" || leader.Labels["app"] != "vllm" || leader.Spec.Containers[0].Image != "vllm:2" {
		t.Errorf("leader template %+v, want the workers' with the policy's label", leader)
	}
	if _, ok := c.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels["canary"]; ok {
		t.Error("workers got the leader's label")
	}
}

// An annotation that somebody edited is told of and not believed; the release can be ended all the same.
func TestTargetIsNotTrusted(t *testing.T) {
	for value, want := range map[string]string{
		`{"groups":"50%","at":"2026-11-20T12:00:00Z"}`:           "50%",
		`{"groups":"50%","batch":2,"at":"2026-11-20T12:00:00Z"}`: "50%",
		`{"groups":"50%","batch":3,"at":"2026-11-20T12:00:00Z"}`: "",
		`{"groups":"many"}`: "",
		`half`:              "",
	} {
		stable := inPhase(t, record.Progressing)
		c := canaryOf(t, stable)
		c.Annotations[record.TargetAnnotation] = value
		b := newBed(t, stable, c)
		s := b.look()
		trusted := want != ""
		if !trusted {
			want = "1" // what it is scaled to
		}
		if got := s.Added[0].Target; got == nil || got.Groups != want {
			t.Errorf("%s: target %+v, want %s", value, got, want)
		}
		d := describe(s, next(t, s))
		if told := strings.Contains(d.GetMessage(), "can't be trusted"); told == trusted {
			t.Errorf("%s: the message is %q", value, d.GetMessage())
		}
		if d.CurrentBatch != nil && d.GetCurrentBatch() >= d.GetBatches() {
			t.Errorf("%s: batch %d of %d", value, d.GetCurrentBatch(), d.GetBatches())
		}
	}
}

// A pod that was copied, labels and all, is one more than its group can have. Hosts would refuse the whole answer.
func TestGroupRowCountsNoMoreThanThereAre(t *testing.T) {
	if row := groupRow(plan.Group{Pods: 2, ReadyPods: 3, Ready: true}, pb.GroupRole_GROUP_ROLE_STABLE, true); row.GetReadyPods() != 2 {
		t.Errorf("%d of %d pods are ready", row.GetReadyPods(), row.GetPods())
	}
}

func TestCanaryClaimsGoWithIt(t *testing.T) {
	w := stableWorkload()
	if CanaryTemplate(w, record.Policy{}).PersistentVolumeClaimRetentionPolicy != nil {
		t.Error("a template without claims got a retention policy, and so a revision of its own")
	}
	w.Spec.LeaderWorkerTemplate.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "cache"}}}
	got := CanaryTemplate(w, record.Policy{}).PersistentVolumeClaimRetentionPolicy
	if got == nil || got.WhenDeleted != appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
		t.Errorf("retention policy %+v: the canary's claims would be left behind", got)
	}
}

// TestRevisionMatchesTemplate: a ControllerRevision written as LWS v0.9.0 writes it (pkg/utils/revision getPatch) has
// the digest of the spec that it was made from, and of no other.
func TestRevisionMatchesTemplate(t *testing.T) {
	w := stableWorkload()
	raw, err := json.Marshal(map[string]any{"spec": map[string]any{
		"leaderWorkerTemplate": patchOf(t, w.Spec.LeaderWorkerTemplate),
		"networkConfig":        map[string]any{"subdomainPolicy": "Shared", "$patch": "replace"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := stripRevision(&appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: "vllm-abc-1", Namespace: "default",
			Labels:          map[string]string{lws.SetNameLabelKey: "vllm", lws.RevisionKey: "abc"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w, lws.GroupVersion.WithKind("LeaderWorkerSet"))},
		},
		Data: runtime.RawExtension{Raw: raw}, Revision: 3,
	})
	v, ok := got.(*revisionView)
	if err != nil || !ok || v.hash != "abc" || v.set != "vllm" || v.owner != w.UID || v.number != 3 {
		t.Fatalf("view is %+v, %v", got, err)
	}
	same, err := digestOf(w.Spec.LeaderWorkerTemplate, nil)
	if err != nil || v.digest != same {
		t.Errorf("the revision does not match the template that it was made from (%v)", err)
	}
	w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image = "vllm:3"
	if other, err := digestOf(w.Spec.LeaderWorkerTemplate, nil); err != nil || v.digest == other {
		t.Errorf("the revision matches another template (%v)", err)
	}
}

// patchOf is a value as a strategic merge patch that replaces it.
func patchOf(t *testing.T, value any) map[string]any {
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
