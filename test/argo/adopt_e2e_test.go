// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A promotion that adopts the second set: the workload has another object each time, and the Rollout keeps its name. An abort
// while the old set is on standby returns to it.
//
// Proves: Argo: idle costs no request; a driver apart; handover; the examples.
func TestAdoption(t *testing.T) {
	t.Parallel()
	adopting := withConfig(`style: BlueGreen, blueGreen: {promotion: Adopt, scaleDownDelay: 2s}`)
	e := newRelease(t, step("upgrade: 100%")+step("promote: true"), adopting)
	now := name
	for _, tag := range []string{"v2", "v3"} {
		e.editNamed(now, tag)
		next := e.awaitSuccessor(now, tag)
		assert.NotEqual(t, name, next, "it is %s again", next)
		now = next
	}
}

// editNamed changes the image of a LeaderWorkerSet.
func (e *env) editNamed(workload, tag string) {
	e.T.Helper()
	patch := fmt.Appendf(nil, `[{"op":"replace","path":"/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":"example.com/vllm:%s"}]`, tag)
	_, err := e.Sets().Patch(e.T.Context(), workload, types.JSONPatchType, patch, metav1.PatchOptions{})
	require.NoError(e.T, err)
}

// awaitSuccessor waits until the Rollout is healthy and the workload is another object, whose groups are all at the tag.
func (e *env) awaitSuccessor(of, tag string) (successor string) {
	e.T.Helper()
	e.Eventually("the successor of "+of, func(ctx context.Context) error {
		sets, err := e.Sets().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(sets.Items) != 1 || sets.Items[0].Name == of {
			return fmt.Errorf("there are %d, the first is %s", len(sets.Items), sets.Items[0].Name)
		}
		successor = sets.Items[0].Name
		if known := sets.Items[0].Labels["lockstep.dev/workload"]; known != name {
			return fmt.Errorf("it is known as %q", known)
		}
		return e.Only(ctx, tag)
	})
	e.awaitPhase(v1alpha1.RolloutPhaseHealthy)
	return successor
}
