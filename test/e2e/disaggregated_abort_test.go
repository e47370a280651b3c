// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestDisaggregatedPromotionAborted: a promotion is aborted once it has removed the old groups of prefill, and the Service leads to the new units.
// The removed groups start again, those of decode that are left stay where they stand beside a second set, and the Service leads to them again.
//
// Proves: A promotion of a DisaggregatedSet is aborted after it has removed old groups, in every style: they return.
func TestDisaggregatedPromotionAborted(t *testing.T) {
	t.Parallel()
	for _, style := range []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION} {
		t.Run(style.String(), func(t *testing.T) {
			t.Parallel()
			s := newRoleSet(t, 2, 2)
			s.pace("1", "0")
			s.adopt()
			s.expose()
			user := s.service()
			s.setImage("v2")
			s.Await("v2", 0, 0)
			s.beginWith("r1", &pb.ReleasePolicy{
				Style: style, Batches: []string{"100%"}, Traffic: &pb.TrafficPolicy{StableService: s.name + "-http", Ingresses: []string{s.name}},
			})
			s.upgrade("r1", 0)
			old, release := s.Leaders("v1"), s.retain("v1", "prefill")
			update := s.promoteUntilRemoved("v1", "prefill")
			assert.Equal(t, update, s.service()[disaggregated.RevisionLabelKey], "the Service selects revision")
			s.eventually("the abort", func(ctx context.Context) error {
				_, err := s.driver.Finalize(ctx, &pb.FinalizeRequest{Workload: s.ref(), ReleaseId: "r1", Intent: rollback})
				return err
			})
			release()
			s.awaitState(pb.State_STATE_ROLLED_BACK, "")
			s.Await("v1", 2, 2)
			s.Await("v2", 0, 0)
			for name, uid := range s.Leaders("v1") {
				assert.False(t, style != pb.Style_STYLE_PARTITION && s.roleOf(name) == "decode" && old[name] != uid, "%s was started again", name)
			}
			now := s.service()
			assert.True(t, maps.Equal(now, user), "the Service selects %v, and before %v", now, user)
		})
	}
}

// promoteUntilRemoved promotes the release, until the groups of a role with a tag are removed. It returns the update revision.
func (s *roleSet) promoteUntilRemoved(tag, role string) (update string) {
	s.t.Helper()
	s.eventually("the promotion", func(ctx context.Context) error {
		r, err := s.driver.Finalize(ctx, &pb.FinalizeRequest{Workload: s.ref(), ReleaseId: "r1", Intent: promote})
		update = r.GetContext().GetUpdateRevision()
		return err
	})
	s.eventually("the last groups of "+role+" are removed", func(ctx context.Context) error {
		found, err := s.Children(ctx, tag)
		if err == nil && *found[role].Spec.Replicas > 0 {
			err = errNotYet
		}
		return err
	})
	s.awaitState(pb.State_STATE_PROMOTING, "StableScalingDown")
	return update
}

// roleOf returns the role of a leader, "" if it is gone.
func (s *roleSet) roleOf(leader string) string {
	s.t.Helper()
	pod, err := s.kube.CoreV1().Pods(s.namespace).Get(s.t.Context(), leader, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return pod.Labels[disaggregated.RoleLabelKey]
}

// retain keeps the first leader of a role with a tag from being deleted completely, until release is called.
func (s *roleSet) retain(tag, role string) (release func()) {
	s.t.Helper()
	for name := range s.Leaders(tag) {
		if s.roleOf(name) != role {
			continue
		}
		patch := func(finalizers string) error {
			_, err := s.kube.CoreV1().Pods(s.namespace).Patch(context.WithoutCancel(s.t.Context()), name, types.MergePatchType,
				fmt.Appendf(nil, `{"metadata":{"finalizers":%s}}`, finalizers), metav1.PatchOptions{})
			return err
		}
		require.NoError(s.t, patch(`["example.com/retained"]`))
		return func() { require.NoError(s.t, patch("null")) }
	}
	require.NoError(s.t, errors.New("there is no such leader"))
	return nil
}
