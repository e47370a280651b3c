// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// TestDisaggregatedFaults: the driver is killed at every write of a release, or its writes are refused or lost, their answers are lost, or its
// caches are stale after them; or LWS is killed. The release ends as without faults, and no group starts twice. Without the policies that
// enforce bounds there is none: the set is not adopted, and the error has the command that installs them.
//
// Proves: A DisaggregatedSet whose driver is killed at every write, or whose writes and answers are lost, or whose LWS is killed: the end is
// the same, no group starts twice.
func TestDisaggregatedFaults(t *testing.T) {
	t.Parallel()
	t.Run("LWS is killed", func(t *testing.T) {
		t.Parallel()
		releaseWithoutLWS(t)
	})
	kinds := slices.DeleteFunc(slices.Clone(faultKinds), fault.slow)
	for n, in := range allStyles {
		for m, intent := range []pb.FinalizeIntent{promote, rollback} {
			for i := range len(kinds) + 2 { // the first two kill the driver, and every course meets one of these
				if i < 2 && i != m || i >= 2 && !meets(2*n+m, i, 6) {
					continue
				}
				name, kind := fmt.Sprintf("killed, answered=%t", i == 1), fault{}
				if i > 1 {
					name, kind = kinds[i-2].name, kinds[i-2]
				}
				t.Run(fmt.Sprintf("%s/%s/%s", in.name, intent, name), func(t *testing.T) {
					t.Parallel()
					d, s := disturbRoles(t, kind)
					if i < 2 {
						d.proxy.fault = killing(s.driver, i == 1)
					}
					s.runDisturbed(d, in, intent)
				})
			}
		}
	}
}

// releaseWithoutLWS promotes releases, and kills LWS while a template waits, and in the middle of a batch and of the promotion. The cluster is the test's own.
func releaseWithoutLWS(t *testing.T) {
	t.Helper()
	c := suite.Own(t, cluster.WithNodes(4, nil))
	e := newEnvIn(t, c)
	e.observer.waive(ruleHold)
	e.driver = driver.Start(t, driver.Kubeconfig(t, c), e.namespace)
	s := rolesIn(e, 2, 2)
	s.needsPolicies()
	suite.InstallRoles(t, c)
	s.pace("1", "0")
	s.adopt()
	for i, style := range []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_PARTITION} {
		before, after := fmt.Sprintf("v%d", i+1), fmt.Sprintf("v%d", i+2)
		s.setImage(after)
		s.awaitHeld(after)
		require.NoError(t, c.KillComponent(cluster.LWS))
		require.NoError(t, c.StartComponent(t.Context(), cluster.LWS))
		for _, decode := range []int32{3, 2} { // LWS follows the set again, and starts nothing of the template that waits
			s.scale(2, decode)
			s.Await(before, 2, decode)
			s.awaitHeld(after)
		}
		groups := s.count()
		s.begin(after, style, "50%", "100%")
		s.killLWS("the batch starts groups", func() bool { return len(s.Leaders(after)) > 0 }, func(ctx context.Context) error {
			_, err := s.driver.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{Workload: s.ref(), ReleaseId: after, Target: &pb.UpgradeBatchRequest_Batch{}})
			return err
		})
		s.upgrade(after, 0)
		s.upgrade(after, 1)
		old := len(s.Leaders(before))
		s.killLWS("the promotion removes groups", func() bool { return len(s.Leaders(before)) < old }, func(ctx context.Context) error {
			_, err := s.driver.Finalize(ctx, &pb.FinalizeRequest{Workload: s.ref(), ReleaseId: after, Intent: promote})
			return err
		})
		s.awaitState(pb.State_STATE_COMPLETED, "")
		s.Await(before, -1, -1)
		s.Await(after, 2, 2)
		groups.mu.Lock()
		n := len(groups.seen[after])
		assert.Equal(t, 4, n, "%s: %d groups of the update were started, want 4", style, n)
		groups.mu.Unlock()
	}
}

// needsPolicies tries to adopt the set where nothing enforces bounds, and changes nothing.
func (s *roleSet) needsPolicies() {
	s.t.Helper()
	s.eventually("the adoption is refused", func(ctx context.Context) error {
		_, err := s.driver.Adopt(ctx, &pb.AdoptRequest{Workload: s.ref()})
		if err == nil || !strings.Contains(err.Error(), "nothing enforces the bounds of the children of DisaggregatedSet") || !strings.Contains(err.Error(), "kubectl apply -k config/disaggregated (Helm: policies.disaggregated=true)") {
			return fmt.Errorf("it got %w", err)
		}
		return nil
	})
	s.awaitState(pb.State_STATE_UNMANAGED, "")
	set, err := s.sets().Get(s.t.Context(), s.name, metav1.GetOptions{})
	require.NoError(s.t, err)
	assert.Empty(s.t, set.GetAnnotations()[recordAnnotation], "it has the record")
}

// killLWS kills LWS once something has happened after a request. Then it starts it again.
func (s *roleSet) killLWS(what string, happened func() bool, request func(context.Context) error) {
	s.t.Helper()
	s.eventually("the request", request)
	s.eventually(what, func(context.Context) error {
		if !happened() {
			return errNotYet
		}
		return nil
	})
	require.NoError(s.t, s.cluster.KillComponent(cluster.LWS))
	c, err := s.tryContext(s.t.Context())
	s.t.Logf("LWS is killed once %s: %s, %s, %v", what, c.GetState(), c.GetMessage(), err)
	require.NoError(s.t, s.cluster.StartComponent(s.t.Context(), cluster.LWS))
}

// disturbRoles creates a set whose driver's writes meet a fault.
func disturbRoles(t *testing.T, kind fault) (*disturbed, *roleSet) {
	t.Helper()
	d := &disturbed{t: t}
	s := newRoleSetOf(t, 2, 2, func(e *env) *driver.Driver {
		d.proxy = newProxy(t, e, kind)
		e.driver = driver.Prepare(t, d.proxy.kubeconfig, e.namespace)
		e.driver.Begin()
		d.proxy.open()
		return e.driver
	})
	d.w = s.workload
	return d, s
}

// runDisturbed releases image v2 in two batches, and ends the release.
func (s *roleSet) runDisturbed(d *disturbed, in style, intent pb.FinalizeIntent) {
	s.t.Helper()
	s.pace("1", "0")
	stable, groups := s.Leaders("v1"), s.count()
	d.style, d.course, d.edit = in, course{batches: []int32{0, 1}, intent: intent}, func() { s.setImage("v2") }
	d.run()
	started := 4
	if in.inPlace() && intent == rollback {
		started = 2 // a unit stays until the promotion
	}
	if intent == promote {
		s.Await("v1", -1, -1)
		s.Await("v2", 2, 2)
	} else {
		s.awaitHeld("v2")
		s.Await("v1", 2, 2)
		if !in.inPlace() {
			s.mustStay("v1", stable)
		}
	}
	groups.mu.Lock()
	defer groups.mu.Unlock()
	assert.Len(s.t, groups.seen["v2"], started, "groups of the update were started")
	s.t.Logf("%d writes, %d faults", d.proxy.writes, d.proxy.faults)
}

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
			s.awaitHeld("v2")
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
			s.awaitHeld("v2")
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
