// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A driver finds an autoscaler that is held for a deleted workload, or for a release that is over.
func TestAutoscalersLeftHeld(t *testing.T) {
	for name, objects := range map[string][]*lws.LeaderWorkerSet{
		"workload-deleted": nil,
		"at-rest":          {lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: record.Native(record.Hold())})},
		"unmanaged":        {lwstest.Unrecorded()},
	} {
		t.Run(name, func(t *testing.T) {
			core := fake.NewClientset(lwstest.HPA("vllm", lwstest.HeldFor("vllm")))
			b := newFixtureOn(t, core, lwstest.NoRoutes(), objects...)
			b.run()
			b.eventually("it is released", func() bool {
				h, err := core.AutoscalingV2().HorizontalPodAutoscalers(lwstest.VLLM.Namespace).Get(t.Context(), "scale", metav1.GetOptions{})
				return err == nil && h.Annotations[autoscaler.NoteAnnotation] == "" && *h.Spec.Behavior.ScaleUp.SelectPolicy == autoscalingv2.MaxChangePolicySelect
			})
		})
	}
}

// What scales the successor of a workload that was to be handed over scales that workload again after the successor was deleted.
func TestAutoscalersReturnAfterFailedHandover(t *testing.T) {
	rec, err := record.DecodeRecord(lwstest.InPhase(t, record.Promoting).Annotations[record.RecordAnnotation])
	require.NoError(t, err)
	successor := record.CanaryName("vllm", "vllm", rec.Release.UpdateRevision)
	rec.Release.Phase, rec.Release.Successor, rec.Release.Groups = record.HandingOver, successor, 2
	w := lwstest.WithRecord(t, lwstest.InPhase(t, record.HandingOver), *rec)
	core := fake.NewClientset(lwstest.HPA(successor), lwstest.Revision(t, w, rec.Release.UpdateRevision))
	b := newFixtureOn(t, core, lwstest.NoRoutes(), w)
	b.run()
	b.eventually("it scales the user's workload", func() bool {
		h, err := core.AutoscalingV2().HorizontalPodAutoscalers(lwstest.VLLM.Namespace).Get(t.Context(), "scale", metav1.GetOptions{})
		return err == nil && h.Spec.ScaleTargetRef.Name == "vllm"
	})
}
