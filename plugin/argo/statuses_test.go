// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"fmt"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/statuses"
)

// TestRecordedStatuses: on the Rollouts that Argo's own controller wrote, the plugin decides as before.
func TestRecordedStatuses(t *testing.T) {
	t.Parallel()
	statuses.Decide(t, *update, func(t *testing.T, s statuses.State) string {
		t.Helper()
		all := s.Of("Rollout")
		if len(all) != 1 || s.Context == nil {
			return fmt.Sprintf("%d Rollouts, workload %t", len(all), s.Context != nil)
		}
		ro := &v1alpha1.Rollout{}
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(all[0].Object, ro))
		config, err := readTyped(ro)
		if err != nil {
			return err.Error()
		}
		f := ReadFacts(ro)
		m := planMove(NewTarget(undoes{}, f, config), s.Context)
		note := ""
		if m.annotate != nil {
			note = fmt.Sprintf(" %v", m.annotate.annotations())
		}
		return fmt.Sprintf("%s, step %d; %s: %T%s (%s)", ro.Status.Phase, f.Index, s.Context.GetState(), m.Request, note, m.Why)
	})
}
