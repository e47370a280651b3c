// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import "testing"

func TestParseRef(t *testing.T) {
	t.Parallel()
	for argument, want := range map[string][2]string{
		"vllm": {"", "vllm"}, "lws/vllm": {"LeaderWorkerSet", "vllm"}, "leaderworkersets.leaderworkerset.x-k8s.io/vllm": {"LeaderWorkerSet", "vllm"},
		"disaggregatedset/llm": {"DisaggregatedSet", "llm"}, "DisaggregatedSets/llm": {"DisaggregatedSet", "llm"},
	} {
		if ref, err := ParseRef("serving", argument); err != nil || ref.GetKind() != want[0] || ref.GetName() != want[1] || ref.GetNamespace() != "serving" {
			t.Errorf("%s: %v, %v", argument, ref, err)
		}
	}
	for _, wrong := range []string{"ds/llm", "deployment/vllm", "disaggregatedset/"} {
		if ref, err := ParseRef("serving", wrong); err == nil {
			t.Errorf("%s: %v", wrong, ref)
		}
	}
}
