// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const whole = `# A comment is no object.
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: n1}
- apiVersion: leaderworkerset.x-k8s.io/v1
  kind: LeaderWorkerSet
  metadata:
    name: vllm
    annotations:
      lockstep.dev/release: '{"version": 1, "saved": {"maxUnavailable": "25%", "maxSurge": 2}}'
  spec:
    rolloutStrategy:
      rollingUpdateConfiguration: {maxUnavailable: 1, maxSurge: 0, partition: 1000000}
    leaderWorkerTemplate:
      workerTemplate:
        metadata:
          labels:
            example.com/team.name: serving
        spec:
          containers:
          - name: first
          - image: second
            name: server
---
just text
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: elsewhere}
`

func parse(t *testing.T, text string) *Set {
	t.Helper()
	s := NewSet("serving")
	require.NoError(t, s.Add("all.yaml", []byte(text)))
	return s
}

// Lists are taken apart, and what says no namespace gets one.
func TestSet(t *testing.T) {
	var got []string
	for _, o := range parse(t, whole).objects {
		got = append(got, o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName())
	}
	want := []string{"Node /n1", "LeaderWorkerSet serving/vllm", "Service elsewhere/front"}
	assert.True(t, slices.Equal(got, want), "got %q, want %q", got, want)
}

// JSON is YAML.
func TestJSON(t *testing.T) {
	s := parse(t, `{"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "vllm"}}`)
	all, err := s.Inventories("")
	assert.True(t, err == nil && len(all) == 1 && all[0].Workload.Namespace == "serving", "%v, %v", all, err)
	all, err = s.Inventories("another")
	assert.True(t, err == nil && len(all) == 0, "%v, %v", all, err)
}

func TestInventoriesRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"apiVersion: leaderworkerset.x-k8s.io/v2\nkind: LeaderWorkerSet\n":                                            `apiVersion "leaderworkerset.x-k8s.io/v2"`,
		"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec: {replica: 1}\n":                        "replica",
		"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: x}\nspec: {replicas: -1}\n": "-1 replicas",
	} {
		_, err := parse(t, text).Inventories("")
		assert.ErrorContains(t, err, says, "%q", text)
	}
	for _, text := range []string{"a: [", "a: {b: 1}\n  c: 2\n"} {
		assert.ErrorContains(t, NewSet("x").Add("f", []byte(text)), "read f", "%q", text)
	}
}

// Under hold the user's own configuration is in the record; without any, it is LWS's default.
func TestRolling(t *testing.T) {
	all, err := parse(t, whole).Inventories("vllm")
	require.NoError(t, err)
	w, r := all[0].Workload, all[0].Rolling
	assert.True(t, r.MaxUnavailable.String() == "25%" && r.MaxSurge.IntValue() == 2, r)
	w.Annotations = nil
	r = Rolling(w)
	assert.Equal(t, int32(1000000), *r.Partition, r)
	w.Spec.RolloutStrategy.RollingUpdateConfiguration = nil
	r = Rolling(w)
	assert.True(t, r.MaxUnavailable.IntValue() == 1 && r.MaxSurge.IntValue() == 0 && *r.Partition == 0, r)
}

// An object that is not as its kind is an error, and not overlooked.
func TestInventoryRefuses(t *testing.T) {
	s := parse(t, whole+"---\napiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: 80}\n")
	_, err := s.Inventories("")
	assert.ErrorContains(t, err, "all.yaml: read Service x")
}

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
		all, err := s.Inventories("")
		if err != nil {
			return
		}
		for _, i := range all {
			assert.False(t, i.Workload.Namespace == "" && i.Workload.Name != "", "LeaderWorkerSet %s has no namespace", i.Workload.Name)
		}
	})
}
