// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
)

// The set has fields of its kind only. decode is its entry role, and the leaders of both roles are ready with their group.
func TestDisaggregatedSet(t *testing.T) {
	t.Parallel()
	text := files.Read(t, source("disaggregated", "set.yaml"))
	var set disaggregated.DisaggregatedSet
	require.NoError(t, yaml.UnmarshalStrict(text, &set))
	require.True(t, len(set.Spec.Roles) == 2 && set.Spec.Roles[0].Name == "decode" && set.Spec.Roles[1].Name == "prefill",
		"its roles are %v", set.Spec.Roles)
	for _, role := range set.Spec.Roles {
		template := role.Spec.LeaderWorkerTemplate
		leader, worker := template.LeaderTemplate.Spec, template.WorkerTemplate.Spec
		c := leader.Containers[0]
		assert.True(t, c.Image == worker.Containers[0].Image && c.ReadinessProbe.HTTPGet.Path == "/health" && c.StartupProbe.HTTPGet.Path == "/health",
			"%s: leaders run %s with probe %v, workers %s", role.Name, c.Image, c.ReadinessProbe, worker.Containers[0].Image)
		assert.Greater(t, *worker.TerminationGracePeriodSeconds, *leader.TerminationGracePeriodSeconds,
			"%s: a worker ends before its leader does", role.Name)
	}
}
