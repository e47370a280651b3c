// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Manifests of a repository are read, or refused with an error.
func FuzzManifests(f *testing.F) {
	f.Add("apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: vllm}\nspec: {replicas: 2}\n")
	f.Add("kind: List\nitems:\n- {kind: Service, metadata: {name: a}}\n- {kind: Node}\n")
	f.Add("kind: List\nitems: &a [*a]\n")
	f.Add("---\n# nothing\n---\n[]\n")
	f.Fuzz(func(t *testing.T, text string) {
		s := NewSet("default")
		if s.Add("a.yaml", []byte(text)) != nil {
			return
		}
		all, err := s.Workloads()
		if err != nil {
			return
		}
		for _, w := range all {
			assert.False(t, w.Namespace == "" && w.Name != "", "LeaderWorkerSet %s has no namespace", w.Name)
		}
	})
}
