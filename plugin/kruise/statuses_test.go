// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stretchr/testify/require"

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
