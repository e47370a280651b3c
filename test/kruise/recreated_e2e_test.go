// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// A target that is applied again has no template yet, so that Kruise's webhook does not hold it, and the BatchRelease of the target before
// is left over, after which Kruise begins no other. The template that waits is released at the first step once that is deleted.
//
// Proves (test, same-template): Safety rule 11, Kruise: a target that is applied again, and a release that was aborted, begin nothing
// without a step.
// Proves: Safety rule 11, Kruise: no Rollout, a disabled one, edits meanwhile.
func TestTargetAppliedAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		since func(e *env)
		tag   string
	}{
		{"same-template", func(*env) {}, "v2"},
		{"edited-since", func(e *env) { e.edit("v3") }, "v3"},
		{"twice", func(e *env) {
			e.apply(target(name))
			e.awaitMirrored()
			e.remove(targets)
			e.awaitNoTarget()
			e.mustRest("v1")
		}, "v2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters)
			before := e.leaders()
			e.edit("v2")
			e.awaitPause(1)
			e.mustHave("v1 v1 v1 v2")
			e.remove(targets)
			e.awaitNoTarget()
			e.mustRest("v1")
			test.since(e)
			e.apply(target(name))
			e.awaitReady(name, metav1.ConditionFalse, "NotRequested")
			e.mustRest("v1")
			e.remove(rollouts.GroupVersion().WithResource("batchreleases"))
			e.awaitFirstStep(test.tag, before)
			e.approve()
			e.awaitPause(2)
			e.mustHave("v1 v1 " + test.tag + " " + test.tag)
			e.mustKeep(before, groups-2)
			e.approve()
			e.awaitDone()
			e.mustRest(test.tag)
		})
	}
}

// A Rollout that is disabled releases nothing: the template waits until the Rollout is enabled.
//
// Proves: Safety rule 11, Kruise: no Rollout, a disabled one, edits meanwhile.
func TestEditedWhileDisabled(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	before := e.leaders()
	e.patch(rollouts, `{"spec":{"disabled":true}}`)
	e.awaitPhase("Disabled")
	e.edit("v2")
	e.awaitReady(name, metav1.ConditionFalse, "NotRequested")
	e.staysScaled(before)
	e.patch(rollouts, `{"spec":{"disabled":false}}`)
	e.awaitFirstStep("v2", before)
}

// Another client aborts the release, and an autoscaler then scales the workload: the release does not begin again.
//
// Proves (test): Safety rule 11, Kruise: a target that is applied again, and a release that was aborted, begin nothing without a step.
func TestScaledAfterAbort(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	before := e.leaders()
	e.edit("v2")
	e.awaitPause(1)
	e.mustHave("v1 v1 v1 v2")
	e.end("abort", "--force")
	e.mustRest("v1")
	aborted := e.release()
	e.staysScaled(before)
	if now := e.release(); now != aborted {
		t.Errorf("release %s was aborted, and then %s began", aborted, now)
	}
}

// awaitFirstStep waits for the pause after the first step of a release of the tag, which has replaced no other group.
func (e *env) awaitFirstStep(tag string, before map[string]string) {
	e.t.Helper()
	e.mustHave("v1 v1 v1 " + tag)
	e.awaitPause(1)
	e.mustKeep(before, groups-1)
}

// release returns the id of the workload's last release.
func (e *env) release() string {
	e.t.Helper()
	r, err := record.DecodeRecord(e.workload(e.t.Context()).Annotations[record.RecordAnnotation])
	if err != nil || r.Release == nil {
		e.t.Fatalf("no release is recorded: %v", err)
	}
	return r.Release.ID
}

// end is `lockstep abort` or `lockstep promote` of the release.
func (e *env) end(verb string, flags ...string) {
	e.t.Helper()
	binary, err := driver.Binary()
	if err != nil {
		e.t.Fatal(err)
	}
	args := append([]string{verb, name, "--namespace", e.namespace, "--kubeconfig", e.cluster.Kubeconfig()}, flags...)
	if out, err := exec.CommandContext(e.t.Context(), binary, args...).CombinedOutput(); err != nil {
		e.t.Fatalf("lockstep %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// awaitMirrored waits until the target stands for the workload's template.
func (e *env) awaitMirrored() {
	e.t.Helper()
	e.eventually("the target has the workload's template", func(ctx context.Context) error {
		o := e.target(ctx, name)
		if o.Spec.Template == nil {
			return fmt.Errorf("its spec is %s", asJSON(o.Spec))
		}
		return nil
	})
}

// staysScaled scales the workload up and down, which the target follows: each time every group is at v1, and none was replaced.
func (e *env) staysScaled(before map[string]string) {
	e.t.Helper()
	for range 2 {
		for _, n := range []int{groups + 1, groups} {
			e.patchWorkload(fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
			e.mustHave(strings.TrimSpace(strings.Repeat("v1 ", n)))
			e.eventually("the target follows", func(ctx context.Context) error {
				if s := e.target(ctx, name).Status; int(s.Replicas) != n || int(s.ReadyReplicas) != n {
					return fmt.Errorf("its status is %s", asJSON(s))
				}
				return nil
			})
			e.mustKeep(before, groups-1)
		}
	}
}

// mustKeep fails the test if a leader below this index was replaced.
func (e *env) mustKeep(before map[string]string, below int) {
	e.t.Helper()
	after := e.leaders()
	for i := range below {
		if leader := fmt.Sprintf("%s-%d", name, i); before[leader] != after[leader] {
			e.t.Errorf("%s was restarted", leader)
		}
	}
}
