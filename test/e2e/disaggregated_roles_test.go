// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/require"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestDisaggregatedRoles: a template that replaces a role in mid-release, or adds one, is refused in words. No group of either revision is
// removed, also by those who scale children themselves. With its roles restored the release continues; disowned, LWS rolls the set.
//
// Proves: A template that adds or removes roles in mid-release is refused, and no group is lost.
func TestDisaggregatedRoles(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 2, 1)
	s.adopt()
	s.setImage("v2")
	s.begin("r", pb.Style_STYLE_CANARY, "50%", "100%")
	s.upgrade("r", 0)
	stable, updated := s.Leaders("v1"), s.Leaders("v2")

	rename := func(name string) { // LWS wants two roles at least
		s.edit(func(set *disaggregated.DisaggregatedSet) { set.Spec.Roles[1].Name = name })
	}
	rename("embed")
	if c := s.awaitState(pb.State_STATE_FAILED, "TemplateUnsupported"); !strings.Contains(c.GetMessage(), "has the roles prefill, embed, and its groups have prefill, decode") {
		t.Errorf("it is refused with %q", c.GetMessage())
	}
	for _, tag := range []string{"v1", "v2"} {
		found, err := s.Children(t.Context(), tag)
		require.NoError(t, err)
		_, errScale := s.lws.LeaderworkersetV1().LeaderWorkerSets(s.namespace).Patch(t.Context(), found["decode"].Name, types.MergePatchType,
			[]byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "scale")
		for _, err := range []error{s.dryScale(t.Context(), found["decode"].Name, 0), errScale} {
			if err == nil || !strings.Contains(err.Error(), "Lockstep's hold") {
				t.Errorf("decode of %s is scaled to 0: %v", tag, err)
			}
		}
	}
	rename("decode")
	s.awaitState(pb.State_STATE_READY, "BatchReady")
	for tag, before := range map[string]map[string]types.UID{"v1": stable, "v2": updated} {
		for name, uid := range before {
			if s.Leaders(tag)[name] != uid {
				t.Errorf("the group of %s was started again", name)
			}
		}
	}
	s.upgrade("r", 1)
	s.finalize("r", promote)
	s.Await("v1", -1, -1)
	s.Await("v2", 2, 1)

	s.edit(func(set *disaggregated.DisaggregatedSet) {
		embed := *set.Spec.Roles[1].DeepCopy()
		embed.Name = "embed"
		set.Spec.Roles = append(set.Spec.Roles, embed)
	})
	s.setImage("v4")
	s.Await("v4", 0, 0)
	_, err := s.driver.Initialize(t.Context(), &pb.InitializeRequest{
		Workload: s.ref(), ReleaseId: "next", Owner: "test", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}},
	})
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "has the roles prefill, decode, embed", "lockstep disown")
	if err := s.Check(t.Context(), "v2", 2, 1); err != nil {
		t.Error(err)
	}
	s.disown(s.ref())
	s.edit(func(set *disaggregated.DisaggregatedSet) {
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, "example.com/woken", "true")
	})
	s.Await("v4", 2, 1)
	s.Await("v2", -1, -1)
}
