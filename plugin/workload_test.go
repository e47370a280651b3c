// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"
	"testing"
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
		if err != nil || name != tc.name || NameOf(ref) != name || ObjectOf(ref) != tc.object || ref.GetNamespace() != "ns" {
			t.Errorf("kind %q: name %q, workload %v, %v", tc.kind, name, ref, err)
		}
	}
	_, err := NameFor("StatefulSet", "llm")
	if err == nil || !strings.Contains(err.Error(), "want LeaderWorkerSet or DisaggregatedSet") {
		t.Error(err)
	}
}
