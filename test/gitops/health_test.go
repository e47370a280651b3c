// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package gitops_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/test/gitops"
)

// condition returns a change of the only true condition.
func condition(kind lws.LeaderWorkerSetConditionType) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) { w.Status.Conditions[0].Type = string(kind) }
}

// released returns a change of the record to a release in a phase.
func released(phase record.Phase) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) {
		r := &record.Record{Release: &record.Release{
			ID: "r7", Owner: "argo-rollouts/default/vllm", Policy: []byte(`{"style":"STYLE_CANARY"}`), Phase: phase,
			EndMessage: `a text with "phase":"Promoted" and "owner":"other"`,
		}}
		value, err := r.Encode()
		if err != nil {
			panic(err)
		}
		metav1.SetMetaDataAnnotation(&w.ObjectMeta, record.RecordAnnotation, value)
	}
}

func updated(groups int32) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) { w.Status.UpdatedReplicas = groups }
}

// What Argo CD and Flux say about a LeaderWorkerSet of 4 groups at rest under hold after a promotion, and about changes of it.
func TestGitOpsHealth(t *testing.T) {
	argo, err := gitops.ArgoCD("../../config/argo/argo-cd/argocd-cm.yaml")
	require.NoError(t, err)
	flux, err := gitops.Flux("../../examples/gitops/flux.yaml")
	require.NoError(t, err)
	type changes []func(*lws.LeaderWorkerSet)
	for name, test := range map[string]struct {
		reason  string
		changes changes
		health  string
		message string
	}{
		"at rest": {
			"every group runs the template", nil, gitops.Healthy, "4 of 4 groups ready, 4 updated",
		},
		"not adopted": {
			"LWS has rolled out the template", changes{func(w *lws.LeaderWorkerSet) { w.Annotations = nil }}, gitops.Healthy, "",
		},
		"adopted, never released": {
			"the record has no release", changes{func(w *lws.LeaderWorkerSet) {
				w.Annotations[record.RecordAnnotation] = `{"version":1,"saved":{}}`
			}}, gitops.Healthy, "",
		},
		"no groups": {
			"no group runs another template", changes{updated(0), func(w *lws.LeaderWorkerSet) {
				w.Spec.Replicas = ptr.To[int32](0)
				w.Status.Replicas, w.Status.ReadyReplicas = 0, 0
			}}, gitops.Healthy, "0 of 0 groups ready",
		},
		"created": {
			"LWS has written no status", changes{func(w *lws.LeaderWorkerSet) { w.Status = lws.LeaderWorkerSetStatus{} }},
			gitops.Progressing, "has not observed generation 3",
		},
		"edited": {
			"the counts are about the template before", changes{func(w *lws.LeaderWorkerSet) { w.Generation = 4 }},
			gitops.Progressing, "has not observed generation 4",
		},
		"LWS before v0.9.0": {
			"it does not report which template its counts are about",
			changes{func(w *lws.LeaderWorkerSet) { w.Status.ObservedGeneration = 0 }}, gitops.Progressing, "",
		},
		"template waits": {
			"no group runs the template, and LWS is at rest", changes{updated(0)},
			gitops.Suspended, "0 updated; the template is held and waits for a release by argo-rollouts/default/vllm",
		},
		"template waits for the first release": {
			"who releases it is not recorded", changes{updated(0), func(w *lws.LeaderWorkerSet) {
				w.Annotations[record.RecordAnnotation] = `{"version":1,"saved":{}}`
			}}, gitops.Suspended, "waits for a release by its host",
		},
		"rolled back": {
			"the template stays, and waits again", changes{updated(0), released(record.CleaningUp)}, gitops.Suspended,
			"waits for a release by argo-rollouts/default/vllm, whose last one was rolled back",
		},
		"partition of the user": {
			"LWS holds the other groups", changes{updated(1), func(w *lws.LeaderWorkerSet) { w.Annotations = nil }}, gitops.Suspended, "",
		},
		"template waits, group not ready": {
			"the worse of the two", changes{updated(0), condition(lws.LeaderWorkerSetProgressing), func(w *lws.LeaderWorkerSet) {
				w.Status.ReadyReplicas = 3
			}}, gitops.Progressing, "3 of 4 groups ready, 0 updated; the template is held",
		},
		"LWS rolls": {
			"every group is updated, one of them is not ready", changes{condition(lws.LeaderWorkerSetProgressing)}, gitops.Progressing, "",
		},
		"surge group": {
			"LWS has counted the new surge group as updated", changes{func(w *lws.LeaderWorkerSet) { w.Status.Replicas = 5 }},
			gitops.Progressing, "",
		},
		"paused": {
			"a canary waits for its host", changes{updated(0), released(record.Progressing)},
			gitops.Suspended, "release r7 by argo-rollouts/default/vllm is in flight (Progressing)",
		},
		"last batch in place": {
			"every group is updated, the release is not promoted", changes{released(record.Progressing)}, gitops.Suspended, "in flight",
		},
		"template restored": {
			"the canary still runs the other template", changes{released(record.Progressing)}, gitops.Suspended, "in flight",
		},
		"promoted by LWS": {
			"the driver has not ended the release", changes{released(record.Promoting)}, gitops.Progressing, "(Promoting)",
		},
		"standby":      {"the old set may return", changes{released(record.Standby)}, gitops.Progressing, "(Standby)"},
		"handing over": {"the object will be deleted", changes{released(record.HandingOver)}, gitops.Progressing, "(HandingOver)"},
		"rolling back": {"groups are being restored", changes{released(record.RollingBack)}, gitops.Progressing, "(RollingBack)"},
		"nothing":      {"there was nothing to release", changes{released(record.Nothing)}, gitops.Healthy, ""},
		"newer phase":  {"a newer driver's phase is in flight", changes{released("Thawing")}, gitops.Progressing, "(Thawing)"},
		"deleted": {
			"it will be gone", changes{func(w *lws.LeaderWorkerSet) { w.DeletionTimestamp = ptr.To(metav1.Now()) }}, gitops.Progressing, "Being deleted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &lws.LeaderWorkerSet{
				ObjectMeta: metav1.ObjectMeta{Name: "vllm", Generation: 3},
				Spec:       lws.LeaderWorkerSetSpec{Replicas: ptr.To[int32](4)},
				Status: lws.LeaderWorkerSetStatus{
					Replicas: 4, ReadyReplicas: 4, UpdatedReplicas: 4, ObservedGeneration: 3,
					Conditions: []metav1.Condition{{Type: string(lws.LeaderWorkerSetAvailable), Status: metav1.ConditionTrue}},
				},
			}
			released(record.Promoted)(w)
			for _, change := range test.changes {
				change(w)
			}
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w)
			require.NoError(t, err)
			health, message, err := argo(object)
			assert.True(t, err == nil && health == test.health && strings.Contains(message, test.message),
				"Argo CD: %s, %q, %v, want %s, %q: %s", health, message, err, test.health, test.message, test.reason)
			health, _, err = flux(object)
			if want := test.health == gitops.Healthy; err != nil || (health == gitops.Healthy) != want && name != "deleted" {
				t.Errorf("Flux: %q, %v, want healthy %t: %s", health, err, want, test.reason)
			}
		})
	}
}
