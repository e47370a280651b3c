// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/statuses"
)

// moves are the kinds of moves as the recordings have them.
var moves = map[action]string{
	actNone: "status", actAddFinalizer: "add finalizer", actRemoveFinalizer: "remove finalizer", actMirror: "mirror", actCall: "call",
}

// TestRecordedStatuses: on the objects that Kruise's own manager wrote, the controller decides as before.
func TestRecordedStatuses(t *testing.T) {
	t.Parallel()
	statuses.Decide(t, *update, func(t *testing.T, s statuses.State) string {
		t.Helper()
		targets := s.Of("RolloutTarget")
		if len(targets) != 1 || s.Context == nil {
			return fmt.Sprintf("%d targets, workload %t", len(targets), s.Context != nil)
		}
		target := &v1alpha1.RolloutTarget{}
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(targets[0].Object, target))
		workload := host.Metadata(host.LeaderWorkerSet)
		workload.Namespace, workload.Name = target.Namespace, target.Spec.WorkloadRef.Name
		objects := []client.Object{workload, target}
		for _, o := range s.Of("ControllerRevision") {
			revision := host.Metadata(revisionKind)
			revision.ObjectMeta = metav1.ObjectMeta{
				Namespace: o.GetNamespace(), Name: o.GetName(), Labels: o.GetLabels(), OwnerReferences: o.GetOwnerReferences(),
				CreationTimestamp: o.GetCreationTimestamp(),
			}
			objects = append(objects, revision)
		}
		for _, o := range append(s.Of("Rollout"), s.Of("BatchRelease")...) {
			objects = append(objects, o.DeepCopy())
		}
		r, _ := benchOf(t, s.Context, interceptor.Funcs{}, objects...)
		v, err := r.observe(t.Context(), target)
		require.NoError(t, err)
		m := planMove(v)
		answer := fmt.Sprintf("%s: %s %T (%s) %d/%d", s.Context.GetState(), moves[m.action], m.call.Request, m.why,
			m.status.UpdatedReadyReplicas, m.status.Replicas)
		for _, c := range m.status.Conditions {
			answer += fmt.Sprintf(", %s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
		return answer
	})
}

func TestEventOf(t *testing.T) {
	t.Parallel()
	status := func(state string, ready metav1.ConditionStatus, reason string) v1alpha1.RolloutTargetStatus {
		return v1alpha1.RolloutTargetStatus{State: state, Conditions: []metav1.Condition{{Type: ConditionReady, Status: ready, Reason: reason, Message: "why"}}}
	}
	upgrading := status("Upgrading", metav1.ConditionTrue, "GroupsNotReady")
	failed := status("Failed", metav1.ConditionFalse, "ProgressDeadlineExceeded")
	for _, c := range []struct {
		name     string
		was, now v1alpha1.RolloutTargetStatus
		want     string
	}{
		{"a batch is ready", upgrading, status("Ready", metav1.ConditionTrue, "BatchReady"), "Normal BatchReady why"},
		{"the release ends", upgrading, status("Completed", metav1.ConditionTrue, "Promoted"), "Normal Promoted why"},
		{"a step towards a state", status("Preparing", metav1.ConditionTrue, "CreatingCanary"), upgrading, ""},
		{"the same state with another reason", status("Ready", metav1.ConditionTrue, "BatchReady"), status("Ready", metav1.ConditionTrue, "Other"), ""},
		{"it fails", upgrading, failed, "Warning ProgressDeadlineExceeded why"},
		{"it still fails", failed, failed, ""},
		{"it fails for another reason", failed, status("Failed", metav1.ConditionFalse, "Unsupported"), "Warning Unsupported why"},
		{"refused from the beginning", v1alpha1.RolloutTargetStatus{}, status("", metav1.ConditionFalse, "WorkloadNotFound"), "Warning WorkloadNotFound why"},
		{"revisions are awaited", upgrading, status("Upgrading", metav1.ConditionFalse, reasonWaiting), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			kind, reason, note := eventOf(c.was, c.now)
			got := kind + " " + reason + " " + note
			assert.False(t, got != c.want && (c.want != "" || kind != ""), "got %q, want %q", got, c.want)
		})
	}
}
