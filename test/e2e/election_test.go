// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// candidate prepares a server that takes part in electing a leader, with an account of its own, so that the audit log
// tells servers apart. See grant for what leaveOut does.
func (e *env) candidate(name string, leaveOut func(resource, verb string) bool) *driver.Driver {
	e.t.Helper()
	d := driver.Prepare(e.t, e.grant(name, leaveOut, rbacv1.PolicyRule{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"},
	}), e.namespace)
	d.Args = []string{"--leader-elect", "--leader-elect-namespace", e.namespace}
	return d
}

// written returns how many writes a candidate has made, without its Lease and the questions for its permissions, and the
// place of its first and last one in the audit log.
func (e *env) written(name string) (n, first, last int) {
	e.t.Helper()
	user := fmt.Sprintf("system:serviceaccount:%s:%s", e.namespace, name)
	for i, r := range audit.Between(e.t, e.cluster.AuditLog(), "", audit.Mark(e.t, e.kube, e.namespace), e.namespace) {
		o := r.ObjectRef
		if !r.IsWrite() || r.User.Username != user || o.Resource == "leases" || strings.HasPrefix(o.Resource, "selfsubject") {
			continue
		}
		if n++; n == 1 {
			first = i
		}
		last = i
	}
	return n, first, last
}

// healUntil heals the pods of a set, new ones too, until the release has a state.
func (w *workload) healUntil(set string, state pb.State) {
	w.t.Helper()
	w.await(fmt.Sprint("state ", state), func(c *pb.BatchContext) bool {
		w.patchPods(set, heal, 0, 1, 2, 3)
		return c.GetState() == state
	})
}

// Of two servers one acts, although a third one that may not read pods has started before. The other refuses calls until the leader
// is killed in mid-promotion, then completes the promotion; no write of the one follows a write of the other.
//
// Proves (test): Several servers: one acts, another takes over; the limit of groups in flight.
// Proves (test): SPEC rule 2: a driver that restarts continues from the cluster.
func TestLeaderElection(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	first, second := e.candidate("first", nil), e.candidate("second", nil)
	third := e.candidate("third", func(resource, verb string) bool {
		return resource == "pods" && (verb == "list" || verb == "watch")
	})
	third.Begin()
	lacking := &workload{env: e, driver: third, name: "model"}
	lacking.awaitError("the third server names the permission", pb.ErrorReason_ERROR_REASON_FORBIDDEN)
	first.Begin()
	first.AwaitSync()
	e.driver = first
	w := e.adopt(model("model", 4, 2))
	second.Begin()
	standby := w.withDriver(second)
	e.eventually("the second server stands by", func(ctx context.Context) error {
		_, err := standby.tryContext(ctx)
		if plugin.Reason(err) != pb.ErrorReason_ERROR_REASON_NOT_SYNCED || !strings.Contains(err.Error(), "stands by") {
			return fmt.Errorf("%w: %w", errNotYet, err)
		}
		return nil
	})
	_, err := standby.tryFinalize("r1", rollback, nil)
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "another one holds the Lease")
	// Groups of the new revision become ready only once the test heals them: the promotion can't be completed before the kill.
	w.edit(image("v2"), withBehavior(cluster.BehaviorNeverReady))
	canary := w.initialize("r1", policy("1", "2")).GetContext().GetCanaryWorkload()
	_, err = w.tryUpgrade("r1", 1, nil)
	require.NoError(t, err)
	w.healUntil(canary, pb.State_STATE_READY)
	// Reading the audit log takes time, in which a promotion may be completed.
	n, _, _ := e.written("second")
	assert.LessOrEqual(t, n, 0, "the standby has made %d writes", n)
	w.startFinalize("r1", promote)
	first.Kill()
	e.driver = second
	e.eventually("the second server acts", func(ctx context.Context) error {
		_, err := standby.tryContext(ctx)
		return err
	})
	standby.healUntil(w.name, pb.State_STATE_COMPLETED)
	standby.mustRun("v2")
	standby.mustBeIdle()
	_, _, last := e.written("first")
	n, from, _ := e.written("second")
	assert.True(t, n != 0 && from >= last, "the second server made %d writes from %d on, the first one its last at %d", n, from, last)
}

// A server with --max-groups-in-flight 2 starts a third group once another is ready or given up, also after a restart. An abort does
// not wait. It is not parallel: tests beside it have drivers for all namespaces, which have no limit.
//
// Proves (test): Several servers: one acts, another takes over; the limit of groups in flight.
func TestAdmission(t *testing.T) {
	e := newEnvIn(t, cluster.Shared(t))
	e.driver = driver.Prepare(t, driver.Kubeconfig(t, e.cluster), e.namespace)
	e.driver.Args = []string{"--max-groups-in-flight", "2"}
	e.driver.Begin()
	e.driver.AwaitSync()
	blocked, next, last := e.adopt(model("blocked", 2, 2)), e.adopt(model("next", 2, 2)), e.adopt(model("last", 2, 2))
	reason := func(want string) func(*pb.BatchContext) bool {
		return func(c *pb.BatchContext) bool { return c.GetReason() == want }
	}

	blocked.edit(image("v2"), annotated(cluster.AnnotationBehavior, cluster.BehaviorImagePull))
	blocked.initialize("r1", policy("100%"))
	_, err := blocked.tryUpgrade("r1", 0, nil)
	require.NoError(t, err)
	blocked.await("two groups are in flight", func(c *pb.BatchContext) bool { return c.GetReason() == "GroupsNotReady" && c.GetUpdated() == 2 })
	for _, w := range []struct {
		*workload
		policy *pb.ReleasePolicy
	}{{next, policy("100%")}, {last, inPlace("100%")}} {
		w.edit(image("v2"))
		w.initialize("r1", w.policy)
		_, err := w.tryUpgrade("r1", 0, nil)
		require.NoError(t, err)
		w.await("it waits for admission", reason("WaitingForAdmission"))
	}
	e.driver.Kill()
	e.driver.Restart()
	for _, w := range []*workload{next, last} {
		w.await("it still waits for admission", reason("WaitingForAdmission"))
	}
	n := next.context().GetTotal()
	assert.Equal(t, int32(2), n, "next has %d groups before admission, want its own 2", n)

	last.finalize("r1", rollback)
	last.mustBeIdle()
	blocked.finalize("r1", rollback)
	next.await("its turn has come", func(c *pb.BatchContext) bool { return c.GetState() == pb.State_STATE_READY })
	next.finalize("r1", promote)
	next.mustBeIdle()
}

// soaks is a field of a release that only a newer driver knows.
const soaks = `"soak":"10m"`

// A driver neither carries on nor repairs what a newer one has begun, and rolls it back on request. The newer one's field stays in the
// record until then.
//
// Proves: The driver is upgraded, or downgraded, in mid-release: a newer version's release is only rolled back.
func TestDowngradeInMidRelease(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	e.driver = driver.Start(t, driver.Kubeconfig(t, e.cluster), e.namespace)
	w := e.adopt(model("model", 4, 2))
	before := w.stablePods()
	w.edit(image("v2"))
	w.initialize("r1", quarters())
	canary := w.upgrade("r1", 0).GetContext().GetCanaryWorkload()
	e.driver.Stop()

	w.edit(func(s *lws.LeaderWorkerSet) {
		s.Annotations[recordAnnotation] = strings.Replace(s.Annotations[recordAnnotation], `"release":{`, `"release":{`+soaks+`,`, 1)
	})
	w.editNamed(canary, annotated("rendered-by", "newer"))
	e.driver.Restart()
	writes := w.ownWrites()
	c := w.awaitState(pb.State_STATE_FAILED)
	assert.True(t, c.GetReason() == "NewerDriver" && strings.Contains(c.GetMessage(), `unknown field "soak"`) && strings.Contains(c.GetMessage(), "lockstep abort"),
		"%s: %s", c.GetReason(), c.GetMessage())
	_, err := w.tryUpgrade("r1", 2, nil)
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_NEWER_DRIVER, "run that driver", "lockstep abort")
	_, err = w.tryFinalize("r1", promote, nil)
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_NEWER_DRIVER)
	if now := w.ownWrites(); !slices.Equal(now, writes) {
		t.Errorf("the driver writes: %v", now[len(writes):])
	}
	assert.Contains(t, w.get().Annotations[recordAnnotation], soaks)

	w.finalize("r1", rollback)
	w.mustBeIdle()
	w.mustRun("v1")
	w.sameGroups(before)
	assert.Contains(t, w.get().Annotations[recordAnnotation], soaks, "the record of the release that was rolled back")
}
