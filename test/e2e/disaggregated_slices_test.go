// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// sliceLabel is on all that LWS makes for a slice, from v0.10.0 on.
const sliceLabel = "disaggregatedset.x-k8s.io/slice"

// setSlices sets the number of slices.
func (s *roleSet) setSlices(n int) {
	s.t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"slices":%d}}`, n)
	_, err := s.sets().Patch(s.t.Context(), s.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl"})
	require.NoError(s.t, err)
}

// awaitSlices waits until the children with a tag have the groups of prefill and decode of each slice, all ready, and there are no others.
func (s *roleSet) awaitSlices(tag string, want ...[2]int32) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("groups of each slice %v at %s", want, tag), func(ctx context.Context) error {
		found, err := s.Members(ctx, tag)
		if err != nil {
			return err
		}
		for slice, groups := range want {
			for i, role := range []string{"prefill", "decode"} {
				w := found[fmt.Sprintf("%d-%s", slice, role)]
				if w == nil {
					return fmt.Errorf("there is no child of role %s in slice %d", role, slice)
				}
				if err := suite.HasGroups(w, groups[i]); err != nil {
					return err
				}
			}
		}
		if len(found) != 2*len(want) {
			return fmt.Errorf("it has the children %v", maps.Keys(found))
		}
		return nil
	})
}

// mustHold fails if the groups of a child can be set, directly or through its scale.
func (s *roleSet) mustHold(child string, groups int) {
	s.t.Helper()
	for _, scale := range [][]string{nil, {"scale"}} {
		assert.ErrorContains(s.t, s.dryScale(s.t.Context(), child, groups, scale...), "Lockstep's hold", "%s is scaled to %d", child, groups)
	}
}

// keepsSlices tries to scale children past the bounds of their slice.
func (s *roleSet) keepsSlices(stable, update string) {
	s.t.Helper()
	before, errStable := s.Members(s.t.Context(), stable)
	after, errUpdate := s.Members(s.t.Context(), update)
	require.True(s.t, errStable == nil && errUpdate == nil, "%v %v", errStable, errUpdate)
	for _, tt := range []struct {
		child  *lws.LeaderWorkerSet
		groups int
	}{{before["0-decode"], 0}, {before["1-prefill"], 1}, {after["0-prefill"], 1}, {after["1-decode"], 1}} {
		s.mustHold(tt.child.Name, tt.groups)
	}
	service := before["1-prefill"].Name + "-prv" // LWS deletes it once the revision lacks a ready group of a role
	err := s.kube.CoreV1().Services(s.namespace).Delete(s.t.Context(), service, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	assert.ErrorContains(s.t, err, "Lockstep's hold", "%s is deleted", service)
}

// TestDisaggregatedSlices: a batch fills one slice after another with whole units, in every style and both ways, with a third template, a
// driver that is killed, and slices that are added and removed in mid-release.
//
// Proves (smoke): A DisaggregatedSet with slices is released slice after slice, in every style and both ways; slices are added and removed
// (LWS v0.10.0).
func TestDisaggregatedSlices(t *testing.T) {
	t.Parallel()
	needsScalers(t)
	s := newRoleSet(t, 2, 1)
	s.adopt()
	_, err := s.sets().Patch(t.Context(), s.name, types.MergePatchType, []byte(`{"spec":{"slices":101}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	require.ErrorContains(t, err, "spec.slices in body should be less than or equal to 100") // as many as the bounds have numbers for
	s.setSlices(2)
	s.awaitSlices("v1", [2]int32{2, 1}, [2]int32{2, 1})
	stable := s.Leaders("v1")
	s.setImage("v2")
	s.awaitSlices("v2", [2]int32{}, [2]int32{})

	s.begin("aborted", pb.Style_STYLE_CANARY, "25%", "75%")
	s.upgrade("aborted", 0)
	s.awaitSlices("v2", [2]int32{1, 1}, [2]int32{})
	c := s.upgrade("aborted", 1)
	s.awaitSlices("v2", [2]int32{2, 1}, [2]int32{1, 1})
	if roles := c.GetRoles(); c.GetReplicas() != 4 || c.GetUpdatedReady() != 3 || roles[1].GetReplicas() != 2 || roles[1].GetPlanned() != 2 || roles[1].GetUpdatedReady() != 2 {
		t.Errorf("%d of %d units are ready, roles %v", c.GetUpdatedReady(), c.GetReplicas(), roles)
	}
	s.finalize("aborted", rollback)
	s.awaitSlices("v2", [2]int32{}, [2]int32{})
	assert.Len(t, stable, 6, "stable groups")
	s.mustStay("v1", stable)

	s.begin("promoted", pb.Style_STYLE_CANARY, "50%", "100%")
	s.upgrade("promoted", 0)
	s.setImage("v3")
	s.awaitState(pb.State_STATE_HOLDING, "WaitingForFirstBatch")
	s.awaitSlices("v2")
	s.upgrade("promoted", 0)
	s.awaitSlices("v3", [2]int32{2, 1}, [2]int32{})
	s.keepsSlices("v1", "v3")
	s.setSlices(3)
	s.eventually("the added slice waits", func(ctx context.Context) error {
		c, err := s.tryContext(ctx)
		if err != nil || strings.Contains(c.GetMessage(), "slices from 2 on get groups once") && c.GetReplicas() == 4 {
			return err
		}
		return fmt.Errorf("%d units: %s", c.GetReplicas(), c.GetMessage())
	})
	s.driver.Kill()
	s.driver.Restart()
	s.upgrade("promoted", 1)
	updated := s.Leaders("v3")
	s.finalize("promoted", promote)
	s.awaitSlices("v1")
	s.awaitSlices("v3", [2]int32{2, 1}, [2]int32{2, 1}, [2]int32{2, 1})
	s.mustKeep("v3", updated)

	s.shiftsSlices()
	s.undo("")
	s.awaitSlices("v3", [2]int32{}, [2]int32{})
	s.awaitSlices("v4", [2]int32{2, 1}, [2]int32{2, 1})
}

// makeLegacy replaces the children by ones as LWS v0.9.0 makes them: their names, and the labels of their pods, have no slice.
func (s *roleSet) makeLegacy() {
	s.t.Helper()
	sets := s.lws.LeaderworkersetV1().LeaderWorkerSets(s.namespace)
	made, err := s.Children(s.t.Context(), "v1")
	require.NoError(s.t, err)
	for role, child := range made {
		earlier := &lws.LeaderWorkerSet{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%s-%s", s.name, child.Labels[disaggregated.RevisionLabelKey], role), Labels: maps.Clone(child.Labels),
				OwnerReferences: child.OwnerReferences,
			},
			Spec: *child.Spec.DeepCopy(),
		}
		for _, labels := range []map[string]string{earlier.Labels, earlier.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels} {
			delete(labels, sliceLabel)
			labels["app"] = s.name + "-" + role
		}
		_, err := sets.Create(s.t.Context(), earlier, metav1.CreateOptions{})
		require.NoError(s.t, err)
	}
	for _, child := range made {
		require.NoError(s.t, sets.Delete(s.t.Context(), child.Name, metav1.DeleteOptions{}))
	}
	s.eventually("only children without a slice", func(ctx context.Context) error {
		found, err := s.Members(ctx, "v1")
		if err == nil && (len(found) != 2 || found["-prefill"] == nil || found["-decode"] == nil) {
			err = fmt.Errorf("it has the children %v", slices.Collect(maps.Keys(found)))
		}
		return err
	})
	s.Await("v1", 2, 1)
}

// serviceUIDs returns the UIDs of LWS's Services of a set's children at a revision, by name.
func (s *roleSet) serviceUIDs(ctx context.Context, revision string) (map[string]types.UID, error) {
	list, err := s.kube.CoreV1().Services(s.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "!" + sliceLabel + "," + disaggregated.SetNameLabelKey + "=" + s.name + "," + disaggregated.RevisionLabelKey + "=" + revision,
	})
	if err != nil {
		return nil, err
	}
	all := map[string]types.UID{}
	for i := range list.Items {
		all[list.Items[i].Name] = list.Items[i].UID
	}
	return all, nil
}

// TestDisaggregatedLegacySlices: children that LWS v0.9.0 made have no slice. Given a second one, LWS v0.10.0 deletes their Services and them, to
// recreate them. The hold keeps both, and the next release adds the slice. A slice that is removed at rest is deleted.
//
// Proves (smoke): Slices are added to a DisaggregatedSet that LWS v0.9.0 made by its next release, and until then cost it no group (LWS v0.10.0).
func TestDisaggregatedLegacySlices(t *testing.T) {
	t.Parallel()
	needsScalers(t)
	s := newRoleSet(t, 2, 1)
	s.makeLegacy()
	s.adopt()
	held := s.awaitState(pb.State_STATE_HOLDING, "Held")
	stable := s.Leaders("v1")
	var services map[string]types.UID
	s.eventually("LWS's Services", func(ctx context.Context) (err error) {
		if services, err = s.serviceUIDs(ctx, held.GetStableRevision()); err == nil && len(services) != 2 {
			err = fmt.Errorf("it has %v", services)
		}
		return err
	})

	from := audit.Mark(t, s.kube, s.namespace)
	s.setSlices(2)
	s.await("the added slice waits", func(c *pb.BatchContext) bool {
		return c.GetReplicas() == 2 && strings.Contains(c.GetMessage(), "slices from 1 on get groups once another template is released")
	})
	s.eventually("LWS is refused", func(context.Context) error {
		for _, r := range audit.Between(t, s.cluster.AuditLog(), from, audit.Mark(t, s.kube, s.namespace), s.namespace) {
			if r.Verb == "delete" && r.ResponseStatus.Code == http.StatusForbidden {
				return nil
			}
		}
		return errNotYet
	})
	s.scale(3, 1)
	s.Await("v1", 3, 1)
	kept, err := s.serviceUIDs(t.Context(), held.GetStableRevision())
	require.NoError(t, err)
	assert.True(t, maps.Equal(kept, services), "LWS's Services were %v and are %v", services, kept)
	s.mustKeep("v1", stable)

	s.setImage("v2")
	s.begin("release", pb.Style_STYLE_CANARY, "100%")
	s.upgrade("release", 0)
	s.finalize("release", promote)
	s.awaitSlices("v1")
	s.awaitSlices("v2", [2]int32{3, 1}, [2]int32{3, 1})
	s.awaitState(pb.State_STATE_COMPLETED, "")
	s.setSlices(1)
	s.awaitSlices("v2", [2]int32{3, 1})
	s.eventually("LWS's Services of the slice are deleted", func(ctx context.Context) error {
		list, err := s.kube.CoreV1().Services(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: sliceLabel + "=1"})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
}

// shiftsSlices replaces units slice by slice, of which one is removed meanwhile: no group starts twice, and each slice keeps a group of each
// role until the promotion.
func (s *roleSet) shiftsSlices() {
	s.t.Helper()
	s.setImage("v4")
	s.awaitSlices("v4", [2]int32{}, [2]int32{}, [2]int32{})
	groups := s.count()
	s.begin("shifted", pb.Style_STYLE_PARTITION, "3")
	s.upgrade("shifted", 0)
	s.awaitSlices("v4", [2]int32{2, 1}, [2]int32{1, 1}, [2]int32{})
	s.awaitSlices("v3", [2]int32{1, 1}, [2]int32{1, 1}, [2]int32{2, 1})
	s.setSlices(2)
	s.awaitSlices("v3", [2]int32{1, 1}, [2]int32{1, 1})
	s.finalize("shifted", promote)
	s.awaitSlices("v3")
	s.awaitSlices("v4", [2]int32{2, 1}, [2]int32{2, 1})
	groups.mu.Lock()
	defer groups.mu.Unlock()
	assert.Len(s.t, groups.seen["v4"], 6, "groups of the update were started")
}

// TestDisaggregatedRoles: a template that replaces a role in mid-release, or adds one, is refused in words. No group of either revision is
// removed, also by those who scale children themselves. With its roles restored the release continues; disowned, LWS rolls the set. The example
// grpcurl releases it by its kind.
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
	assert.Contains(t, s.awaitState(pb.State_STATE_FAILED, "TemplateUnsupported").GetMessage(), "has the roles prefill, embed, and its groups have prefill, decode",
		"it is refused with")
	for _, tag := range []string{"v1", "v2"} {
		found, err := s.Children(t.Context(), tag)
		require.NoError(t, err)
		s.mustHold(found["decode"].Name, 0)
	}
	rename("decode")
	s.awaitState(pb.State_STATE_READY, "BatchReady")
	s.mustKeep("v1", stable)
	s.mustKeep("v2", updated)
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
	s.awaitHeld("v4")
	_, err := s.driver.Initialize(t.Context(), &pb.InitializeRequest{
		Workload: s.ref(), ReleaseId: "next", Owner: "test", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}},
	})
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "has the roles prefill, decode, embed", "lockstep disown")
	assert.NoError(t, s.Check(t.Context(), "v2", 2, 1))
	s.disown(s.ref())
	s.wake()
	s.Await("v4", 2, 1)
	s.Await("v2", -1, -1)

	s.grpcurl("NOTHING_TO_RELEASE")
	s.setImage("v5")
	s.grpcurl("COMPLETED")
	s.Await("v5", 2, 1)
}

// grpcurl runs examples/grpcurl, and fails unless the release gets to a state.
func (s *roleSet) grpcurl(state string) {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), "../../examples/grpcurl/release.sh", s.driver.Address(), s.namespace, "disaggregatedset/"+s.name).CombinedOutput()
	assert.True(s.t, err == nil && strings.Contains(string(out), state), "examples/grpcurl: %v, want %s in\n%s", err, state, out)
}
