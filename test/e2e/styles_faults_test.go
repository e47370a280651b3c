// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// course is a whole release: the batches that the host requests, and how it ends.
type course struct {
	name    string
	batches []int32
	intent  pb.FinalizeIntent
	// promotionRolledBack: the release is promoted first, and its groups never become ready, so the promotion never completes.
	// standby: a handover is rolled back while the workload's own groups are on standby.
	promotionRolledBack, standby bool
}

// courses returns the courses of a style. In place a rollback of all groups differs from one of some groups.
func courses(s style) []course {
	all := []course{
		{name: "promote", batches: []int32{0, 1}, intent: promote},
		{name: "rollback", batches: []int32{0}, intent: rollback},
	}
	switch {
	case s.inPlace():
		all = append(all, course{name: "rollback-of-all", batches: []int32{0, 1}, intent: rollback})
	case s.handover:
		all[1] = course{name: "standby-rolled-back", batches: []int32{0, 1}, intent: rollback, standby: true}
	}
	return all
}

// killedCourses returns courses, and a promotion that is rolled back.
func killedCourses(s style) []course {
	return append(courses(s), course{name: "promotion-rolled-back", intent: rollback, promotionRolledBack: true})
}

// faultsEnv selects the faults: "all" in each course, or "some": each kind in one of a style's courses.
const faultsEnv = "LOCKSTEP_E2E_FAULTS"

// meets reports whether the nth of a style's courses runs with a fault: all do, or they take turns.
func meets(n, fault, courses int) bool {
	switch which := os.Getenv(faultsEnv); which {
	case "all":
		return true
	case "", "some":
		return fault%courses == n%courses
	default:
		panic(fmt.Sprintf("%s is %q, want some or all", faultsEnv, which))
	}
}

// The driver is killed after every write of a release, before or right after it receives the answer.
//
// Proves (test, canary/rollback, blue-green/promote, partition/promotion-rolled-back, handover/promote): Safety rule 6: killed after every
// write, a course of each style.
// Proves (test, canary/rollback, blue-green/promote, partition/promotion-rolled-back, handover/promote): SPEC rule 2: a driver that restarts
// continues from the cluster.
// Proves: Safety rule 6: killed after every write, in every course; every write refused, lost or observed late.
func TestStylesKilledAtEveryWrite(t *testing.T) {
	t.Parallel()
	eachCourse(t, fullHandoverStyle, killedCourses, func(t *testing.T, s style, c course, n int, want string) {
		for i, late := range []bool{false, true} {
			if s.handover && c.intent == rollback {
				if !late {
					continue // it has many writes and would take long
				}
			} else if !meets(n, i, 2) {
				continue
			}
			t.Run(fmt.Sprintf("answered=%t", late), func(t *testing.T) {
				t.Parallel()
				d := disturb(t, s, c, fault{})
				d.proxy.fault = killing(d.w.driver, late)
				d.run()
				d.mustEndAs(want)
			})
		}
	})
}

// Faults at the writes of a release: the write is refused or lost, its answer is lost, or the caches are stale after it.
//
// Proves: Safety rule 6: killed after every write, in every course; every write refused, lost or observed late.
func TestStylesFaultyTransport(t *testing.T) {
	t.Parallel()
	eachCourse(t, handoverStyle, courses, func(t *testing.T, s style, c course, n int, want string) {
		for i, h := range append(slices.Clone(faultKinds), randomFault(1), randomFault(2)) {
			if s.handover {
				if c.intent == rollback || h.slow() {
					continue // it has many writes and would take long
				}
			} else if !meets(n, i, len(courses(s))) {
				continue
			}
			t.Run(h.name, func(t *testing.T) {
				t.Parallel()
				d := disturb(t, s, c, h)
				d.run()
				d.mustEndAs(want)
			})
		}
	})
}

// eachCourse runs a test for each course, the nth of its style, of all styles and one more. want is the outcome without faults.
func eachCourse(t *testing.T, more style, courses func(style) []course, test func(t *testing.T, s style, c course, n int, want string)) {
	t.Helper()
	for _, s := range append(slices.Clone(allStyles), more) {
		for n, c := range courses(s) {
			t.Run(s.name+"/"+c.name, func(t *testing.T) {
				d := disturb(t, s, c, fault{})
				d.run()
				t.Logf("without faults: %d writes", d.proxy.writes)
				test(t, s, c, n, d.outcome())
			})
		}
	}
}

// disturbed is a release whose driver's writes meet faults, and a host that retries its calls.
type disturbed struct {
	t      *testing.T
	w      *workload
	proxy  *proxy
	style  style
	course course
	// edit changes the template.
	edit func()
}

func disturb(t *testing.T, s style, c course, h fault) *disturbed {
	t.Helper()
	e := newEnvIn(t, cluster.Shared(t))
	p := newProxy(t, e, h)
	e.driver = driver.Prepare(t, p.kubeconfig, e.namespace)
	e.driver.Begin()
	p.open()
	w := e.deploy(model("model", 3, 2))
	if s.full {
		w.expose()
		w.autoscale(3, 3, selectPolicies(maxChange, minChange))
	}
	return &disturbed{t, w, p, s, c, func() { w.edit(image("v2"), c.edit) }}
}

// policy returns the policy of the release.
func (d *disturbed) policy() *pb.ReleasePolicy {
	p := d.style.policy(policy("50%", "100%"))
	if d.style.full {
		p = d.w.withTraffic(p)
	}
	if d.style.handover {
		p = handover(p, map[bool]float64{true: -1}[d.course.standby])
	}
	return p
}

// run makes the host's calls of the course.
func (d *disturbed) run() {
	d.t.Helper()
	w, p := d.w, d.policy()
	d.call("Adopt", func(ctx context.Context) error {
		_, err := w.driver.Adopt(ctx, &pb.AdoptRequest{Workload: w.ref()})
		return err
	})
	d.edit()
	d.call("Initialize", func(context.Context) error { return settled(w.tryInitialize("r1", p)) })
	for _, batch := range d.course.batches {
		d.call("UpgradeBatch", func(context.Context) error {
			r, err := w.tryUpgrade("r1", batch, long)
			if err == nil && (r.GetContext().GetState() != pb.State_STATE_READY || r.GetContext().GetCurrentBatch() != batch) {
				return fmt.Errorf("%w: %s", errNotYet, show(r.GetContext()))
			}
			return err
		})
	}
	if d.course.promotionRolledBack {
		d.beginPromotion()
	}
	if d.course.standby {
		d.call("Finalize", func(context.Context) error {
			r, err := w.tryFinalize("r1", promote, seconds(0.1))
			if err == nil && r.GetContext().GetReason() != "WaitingForScaleDownDelay" {
				return fmt.Errorf("%w: %s", errNotYet, show(r.GetContext()))
			}
			return err
		})
	}
	d.call("Finalize", func(context.Context) error {
		r, err := w.tryFinalize("r1", d.course.intent, long)
		if err == nil && !r.GetDone() {
			return fmt.Errorf("%w: %s", errNotYet, show(r.GetContext()))
		}
		return err
	})
}

// edit changes the template as the course requires.
func (c course) edit(s *lws.LeaderWorkerSet) {
	if c.promotionRolledBack {
		withBehavior(cluster.BehaviorNeverReady)(s)
	}
}

// beginPromotion promotes until the first of the workload's own groups is updated. In blue-green none is: the second set has to
// be complete first, and never is.
func (d *disturbed) beginPromotion() {
	d.t.Helper()
	d.call("Finalize", func(context.Context) error {
		_, err := d.w.tryFinalize("r1", promote, nil)
		return err
	})
	d.call("the promotion's first group", func(context.Context) error {
		if d.style.pb != pb.Style_STYLE_BLUE_GREEN && d.w.groupsWith("v2") == 0 {
			return errNotYet
		}
		return nil
	})
}

func settled(r *pb.InitializeResponse, err error) error {
	if err == nil && r.GetContext().GetState() != pb.State_STATE_HOLDING {
		return fmt.Errorf("%w: %s", errNotYet, show(r.GetContext()))
	}
	return err
}

// call retries a call until it succeeds, and restarts the driver if it was killed.
func (d *disturbed) call(what string, call func(context.Context) error) {
	d.t.Helper()
	// A watch that expires is reopened with a backoff of up to half a minute.
	const patience = 4 * await.Patience
	await.NilWithin(d.t, patience, what+" succeeds", func(ctx context.Context) error {
		err := call(ctx)
		if d.proxy.hasCrashed() {
			d.w.driver.Kill()
			d.w.driver.Begin()
			d.proxy.open()
			return fmt.Errorf("the driver was killed (%w)", err)
		}
		require.False(d.t, err != nil && !plugin.Retryable(err) && !isNotYet(err), "%s: %v", what, err)
		return err
	})
}

// mustEndAs fails unless the release has the outcome of one without faults, and everything that it added is deleted.
func (d *disturbed) mustEndAs(want string) {
	d.t.Helper()
	got := d.outcome()
	assert.Equal(d.t, want, got, "the release ended with\n%s\nwant, as without faults,\n%s", got, want)
}

// outcome returns the state after the release, without times.
func (d *disturbed) outcome() string {
	d.t.Helper()
	w, more := d.w, ""
	if d.style.handover && d.course.intent == promote {
		w = w.mustBeHandedOver()
	}
	if d.style.full {
		d.w.mustServe(w.name)
		d.w.awaitAutoscalerRestored()
		more = fmt.Sprintf("autoscaler %s\n", asJSON(d.w.hpa().Spec))
	}
	w.mustBeIdle()
	w.awaitReady()
	if tag := map[pb.FinalizeIntent]string{promote: "v2", rollback: "v1"}[d.course.intent]; tag != "" {
		w.mustRun(tag)
	}
	r := w.record()
	groups := map[string]string{}
	for name, p := range w.stablePods() {
		groups[name] = fmt.Sprint(p.Spec.Containers[0].Image, " ", p.Labels[lws.RevisionKey])
	}
	return more + fmt.Sprintf("spec %s\nsaved %s phase %s from %s to %s\ngroups %s", w.spec(), asJSON(r.Saved), r.phase(),
		r.Release.StableRevision, r.Release.UpdateRevision, asJSON(groups))
}
