// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Whatever is in a Rollout and its BatchRelease is judged, and what can't be read is no evidence.
func FuzzEvidence(f *testing.F) {
	f.Add(`{"spec": {"strategy": {"canary": {"steps": [{"replicas": 1}]}}}, "status": {"phase": "Healthy"}}`,
		`{"spec": {"releasePlan": {"batches": [{"canaryReplicas": "50%"}]}}, "status": {"phase": "Progressing"}}`)
	f.Add(`{"spec": {"strategy": {"canary": 1}}}`, `{"spec": {"releasePlan": [1]}, "status": {"phase": 1}}`)
	f.Add(`{"spec": {"workloadRef": {"apiVersion": "a/b/c"}}}`, `{}`)
	f.Fuzz(func(t *testing.T, rollout, batchRelease string) {
		var r, b map[string]any
		if json.Unmarshal([]byte(rollout), &r) != nil || json.Unmarshal([]byte(batchRelease), &b) != nil || r == nil || b == nil {
			return
		}
		e := Evidence{Rollout: &unstructured.Unstructured{Object: r}, BatchRelease: &unstructured.Unstructured{Object: b}}
		_ = refusalOf(e.Rollout, e.BatchRelease)
		if e.leftOver() && e.listens() {
			t.Error("a Rollout listens beside a BatchRelease that is left over")
		}
		_ = e.batchOf("revision")
	})
}
