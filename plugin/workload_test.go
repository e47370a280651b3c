// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWorkloadNames(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ kind, name, object string }{
		{"", "llm", "LeaderWorkerSet llm"},
		{KindLeaderWorkerSet, "llm", "LeaderWorkerSet llm"},
		{KindDisaggregatedSet, "disaggregatedset/llm", "DisaggregatedSet llm"},
	} {
		name, err := NameFor(tc.kind, "llm")
		ref := RefOf("ns", name)
		assert.True(t, err == nil && name == tc.name && NameOf(ref) == name && ObjectOf(ref) == tc.object && ref.GetNamespace() == "ns",
			"kind %q: name %q, workload %v, %v", tc.kind, name, ref, err)
	}
	_, err := NameFor("StatefulSet", "llm")
	assert.ErrorContains(t, err, "want LeaderWorkerSet or DisaggregatedSet")
}
