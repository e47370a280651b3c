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
	"k8s.io/apimachinery/pkg/types"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
		{"edited-since", func(e *env) { e.Edit("v3") }, "v3"},
		{"twice", func(e *env) {
			e.Apply(target(name))
			e.awaitMirrored()
			e.remove(targets)
			e.awaitNoTarget()
			e.MustRest("v1")
		}, "v2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters)
			before := e.Identities()
			e.Edit("v2")
			e.awaitPause(1)
			e.MustHave("v1 v1 v1 v2")
			e.remove(targets)
			e.awaitNoTarget()
			e.MustRest("v1")
			test.since(e)
			e.Apply(target(name))
			e.awaitReady(name, metav1.ConditionFalse, "NotRequested")
			e.MustRest("v1")
			e.remove(rollouts.GroupVersion().WithResource("batchreleases"))
			e.awaitFirstStep(test.tag, before)
			e.approve()
			e.awaitPause(2)
			e.MustHave("v1 v1 " + test.tag + " " + test.tag)
			e.MustKeep(before, 0, 1)
			e.approve()
			e.awaitDone()
			e.MustRest(test.tag)
		})
	}
}

// A Rollout that is disabled releases nothing: the template waits until the Rollout is enabled.
//
// Proves: Safety rule 11, Kruise: no Rollout, a disabled one, edits meanwhile.
func TestEditedWhileDisabled(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	before := e.Identities()
	e.patch(rollouts, `{"spec":{"disabled":true}}`)
	e.awaitPhase("Disabled")
	e.Edit("v2")
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
	before := e.Identities()
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
	e.end("abort", "--ignore-owner")
	e.MustRest("v1")
	aborted := e.release()
	e.staysScaled(before)
	now := e.release()
	assert.Equal(t, aborted, now, "release %s was aborted, and then %s began", aborted, now)
}

// awaitFirstStep waits for the pause after the first step of a release of the tag, which has replaced no other group.
func (e *env) awaitFirstStep(tag string, before map[string]types.UID) {
	e.T.Helper()
	e.MustHave("v1 v1 v1 " + tag)
	e.awaitPause(1)
	e.MustKeep(before, 0, 1, 2)
}

// release returns the id of the workload's last release.
func (e *env) release() string {
	e.T.Helper()
	r, err := record.DecodeRecord(e.Workload(e.T.Context()).Annotations[record.RecordAnnotation])
	require.True(e.T, err == nil && r.Release != nil, "no release is recorded: %v", err)
	return r.Release.ID
}

// end is `lockstep abort` or `lockstep promote` of the release.
func (e *env) end(verb string, flags ...string) {
	e.T.Helper()
	binary := driver.Path(e.T)
	args := append([]string{verb, name, "--namespace", e.Namespace, "--kubeconfig", e.Cluster.Kubeconfig()}, flags...)
	out, err := exec.CommandContext(e.T.Context(), binary, args...).CombinedOutput()
	require.NoError(e.T, err, "lockstep %s: %v\n%s", strings.Join(args, " "), err, out)
}

// awaitMirrored waits until the target stands for the workload's template.
func (e *env) awaitMirrored() {
	e.T.Helper()
	e.Eventually("the target has the workload's template", func(ctx context.Context) error {
		o := e.target(ctx, name)
		if o.Spec.Template == nil {
			return fmt.Errorf("its spec is %s", asJSON(o.Spec))
		}
		return nil
	})
}

// staysScaled scales the workload up and down, which the target follows: each time every group is at v1, and none was replaced.
func (e *env) staysScaled(before map[string]types.UID) {
	e.T.Helper()
	for range 2 {
		for _, n := range []int{groups + 1, groups} {
			e.Scale(n, "v1")
			e.Eventually("the target follows", func(ctx context.Context) error {
				if s := e.target(ctx, name).Status; int(s.Replicas) != n || int(s.ReadyReplicas) != n {
					return fmt.Errorf("its status is %s", asJSON(s))
				}
				return nil
			})
			e.MustKeep(before, 0, 1, 2)
		}
	}
}
