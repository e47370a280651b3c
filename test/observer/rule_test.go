// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// object decodes YAML.
func object(t *testing.T, manifest string, args ...any) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	raw, err := yaml.YAMLToJSON(fmt.Appendf(nil, manifest, args...))
	if err == nil {
		err = o.UnmarshalJSON(raw)
	}
	require.NoError(t, err, "%v in %s", err, raw)
	return o
}

// story makes the events of a test.
type story struct {
	t      *testing.T
	events []Event
	pods   int
}

func (s *story) add(deleted bool, manifest string, args ...any) *story {
	s.t.Helper()
	s.events = append(s.events, Event{Version: uint64(len(s.events) + 1), Object: object(s.t, manifest, args...), Deleted: deleted})
	return s
}

const podManifest = `
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s-%[2]d
  uid: %[1]s-%[2]d
  labels: {leaderworkerset.sigs.k8s.io/name: %[1]s, leaderworkerset.sigs.k8s.io/template-revision-hash: %[3]s}
`

// pod is a new pod of a set at a revision.
func (s *story) pod(set, revision string) *story {
	s.t.Helper()
	s.pods++
	return s.add(false, podManifest, set, s.pods, revision)
}

// gone is the deletion of the nth pod, which is at the revision new.
func (s *story) gone(n int) *story {
	s.t.Helper()
	return s.add(true, podManifest, "m", n, "new")
}

// replaced is a pod that is being deleted at the revision old, and its successor, between which more happens.
func (s *story) replaced(revision string, meanwhile func(*story)) *story {
	s.t.Helper()
	const manifest = podManifest + "  deletionTimestamp: %s\n"
	s.add(false, strings.Replace(podManifest, "uid: ", "uid: first-", 1), "m", 99, "old")
	s.add(false, strings.Replace(manifest, "uid: ", "uid: first-", 1), "m", 99, "old", "2026-01-01T00:00:00Z")
	meanwhile(s)
	s.add(true, strings.Replace(podManifest, "uid: ", "uid: first-", 1), "m", 99, "old")
	return s.add(false, podManifest, "m", 99, revision)
}

// set is the workload, with a release in a phase unless that is "".
func (s *story) set(owner, id, update, phase string) *story {
	s.t.Helper()
	release := ""
	if phase != "" {
		release = fmt.Sprintf(`, "release": {"id": %q, "owner": %q, "policy": {}, "stableRevision": "old", "updateRevision": %q, "phase": %q, `+
			`"startedAt": "2026-01-01T00:00:00Z", "phaseAt": "2026-01-01T00:00:00Z"}`, id, owner, update, phase)
	}
	return s.add(false, `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: m, annotations: {lockstep.dev/release: '{"version": 1, "saved": {"maxUnavailable": 1, "maxSurge": 0}%s}'}}
`, release)
}

// held is the workload after its adoption, with a group at the revision old.
func held(t *testing.T) *story {
	t.Helper()
	s := &story{t: t}
	return s.pod("m", "old").set("", "", "", "")
}

// rollout is Argo's Rollout of the workload: what its template stands for, and its status.
func (s *story) rollout(uid types.UID, template, status string) *story {
	s.t.Helper()
	return s.add(false, `
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: r, uid: %s, generation: 1, annotations: {lockstep.dev/first-revision: old}}
spec:
  template: {metadata: {annotations: {lockstep.dev/revision: %q}}}
  strategy: {canary: {trafficRouting: {plugins: {lockstep/lws: {workload: m}}}}}
status: {%s}
`, uid, template, status)
}

// status is Argo's status of a Rollout: the current and the stable hash.
func status(hash, stable string, more ...string) string {
	return strings.Join(append([]string{"observedGeneration: '1'", "currentPodHash: '" + hash + "'", "stableRS: '" + stable + "'"}, more...), ", ")
}

// referenced has the pod template of the last Rollout in another object, so that it stands for no revision.
func (s *story) referenced() *story {
	s.t.Helper()
	require.NoError(s.t, unstructured.SetNestedField(s.events[len(s.events)-1].Object.Object, "d", "spec", "workloadRef", "name"))
	return s
}

func (s *story) rolloutDeleted() *story {
	s.t.Helper()
	return s.add(true, "{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: r}}")
}

// batch is Kruise's BatchRelease of a ControllerRevision of the workload.
func (s *story) batch(uid, phase, revision string) *story {
	s.t.Helper()
	return s.add(false, `
apiVersion: rollouts.kruise.io/v1beta1
kind: BatchRelease
metadata: {name: b, uid: %s}
spec: {workloadRef: {kind: RolloutTarget, name: t}}
status: {phase: %s, updateRevision: m-%s}
`, uid, phase, revision)
}

// alone is a BatchRelease of the workload itself, with a release plan.
func (s *story) alone(plan string) *story {
	s.t.Helper()
	return s.add(false, `
apiVersion: rollouts.kruise.io/v1beta1
kind: BatchRelease
metadata: {name: b, uid: u}
spec: {workloadRef: {kind: LeaderWorkerSet, name: m}, releasePlan: {%s}}
`, plan)
}

// target is the RolloutTarget of the workload, and the ControllerRevision of a template revision.
func (s *story) target(revision string) *story {
	s.t.Helper()
	return s.add(false, "{apiVersion: lockstep.dev/v1alpha1, kind: RolloutTarget, metadata: {name: t}, spec: {workloadRef: {name: m}}}").
		add(false, `{apiVersion: apps/v1, kind: ControllerRevision, metadata: {name: m-%[1]s, labels: {leaderworkerset.sigs.k8s.io/template-revision-hash: %[1]s}}}`,
			revision)
}

// inRoles returns the same history of a DisaggregatedSet, whose pods are those of a child for each revision.
func inRoles(t *testing.T, events []Event) []Event {
	t.Helper()
	const revisionKey = "leaderworkerset.sigs.k8s.io/template-revision-hash"
	all := slices.Clone(events)
	for i := range all {
		o := all[i].Object.DeepCopy()
		all[i].Object = o
		switch o.GetKind() {
		case "LeaderWorkerSet":
			if o.GetName() != "m" {
				break // a child
			}
			o.SetAPIVersion("disaggregatedset.x-k8s.io/v1")
			o.SetKind("DisaggregatedSet")
		case "Pod", "ControllerRevision":
			revision := o.GetLabels()[revisionKey]
			o.SetLabels(map[string]string{
				"leaderworkerset.sigs.k8s.io/name": "m-" + revision + "-prefill", revisionKey: "of-the-child",
				"disaggregatedset.x-k8s.io/name": "m", "disaggregatedset.x-k8s.io/revision": revision,
			})
		case "Rollout":
			path := []string{"spec", "strategy", "canary", "trafficRouting", "plugins", "lockstep/lws", "workload"}
			if _, names, _ := unstructured.NestedString(o.Object, path...); names {
				require.NoError(t, unstructured.SetNestedStringMap(o.Object, map[string]string{"kind": "DisaggregatedSet", "name": "m"}, path...))
			}
		case "BatchRelease":
			if kind, _, _ := unstructured.NestedString(o.Object, "spec", "workloadRef", "kind"); kind == "LeaderWorkerSet" {
				require.NoError(t, unstructured.SetNestedField(o.Object, "DisaggregatedSet", "spec", "workloadRef", "kind"))
			}
		case "RolloutTarget":
			require.NoError(t, unstructured.SetNestedField(o.Object, "DisaggregatedSet", "spec", "workloadRef", "kind"))
		}
	}
	return all
}

// Each violation is in a history made for it, and in no history without one: a rule that reports nothing would prove nothing.
func TestRule(t *testing.T) {
	t.Parallel()
	const argo, kruise, batch = "argo-rollouts/ns/r", "kruise-rollouts/ns/t", "kruise-batchrelease/ns/b"
	progressing := func(t *testing.T) *story {
		t.Helper()
		return held(t).rollout("u", "", status("h0", "h0")).rollout("u", "new", status("h1", "h0"))
	}
	startsOver := func(s *story) { s.set("", "r", "other", "Progressing") }
	for name, test := range map[string]struct {
		history  *story
		violates string // the revision that nothing asked for
	}{
		"not held":                      {(&story{t: t}).pod("m", "old").pod("m", "new"), ""},
		"restarted":                     {held(t).pod("m", "old"), ""},
		"held":                          {held(t).pod("m", "new"), "new"},
		"its first group":               {(&story{t: t}).set("", "", "", "").pod("m", "old").pod("m", "old"), ""},
		"another than its first":        {(&story{t: t}).set("", "", "", "").pod("m", "old").pod("m", "new"), "new"},
		"a client's release":            {held(t).set("", "r", "new", "Progressing").pod("m", "new"), ""},
		"a client's other release":      {held(t).set("", "r", "new", "Progressing").pod("m", "other"), "other"},
		"a client's rolled back":        {held(t).set("", "r", "new", "RollingBack").pod("m", "new"), "new"},
		"restarted in mid-release":      {held(t).set("", "r", "new", "Progressing").pod("m", "new").gone(2).pod("m", "new"), ""},
		"begins again after its end":    {held(t).set("", "r", "new", "Progressing").pod("m", "new").set("", "r", "new", "CleaningUp").gone(2).pod("m", "new"), "new"},
		"a host's release alone":        {held(t).set(argo, "r", "new", "Progressing").pod("m", "new"), "new"},
		"replaced while it starts over": {held(t).set("", "r", "new", "Promoting").replaced("new", startsOver), ""},
		"replaced by neither":           {held(t).set("", "r", "new", "Promoting").replaced("another", startsOver), "another"},
		"begun after it started over": {held(t).set("", "r", "new", "Promoting").set("", "r", "other", "Progressing").
			replaced("new", func(*story) {}), "new"},
		"argo: in progress":         {progressing(t).set(argo, "r", "new", "Progressing").pod("m", "new"), ""},
		"argo: referenced":          {progressing(t).referenced().set(argo, "r", "other", "Progressing").pod("m", "other"), ""},
		"argo: referenced, another": {progressing(t).referenced().set(argo, "r", "other", "Progressing").pod("m", "new"), "new"},
		"argo: referenced, at rest": {held(t).rollout("u", "", status("h0", "h0")).referenced().set(argo, "r", "new", "Progressing").pod("m", "new"), "new"},
		"argo: promoted in full":    {progressing(t).rollout("u", "new", status("h1", "h1")).pod("m", "new"), ""},
		"argo: back to stable":      {progressing(t).rollout("u", "", status("h0", "h0")).pod("m", "new"), "new"},
		"argo: aborted":             {progressing(t).rollout("u", "new", status("h1", "h0", "abort: true")).pod("m", "new"), "new"},
		"argo: retried": {progressing(t).rollout("u", "new", status("h1", "h0", "abort: true")).
			rollout("u", "new", status("h1", "h0")).pod("m", "new"), ""},
		"argo: not yet observed": {held(t).rollout("u", "", status("h0", "h0")).
			rollout("u", "new", "observedGeneration: '0', currentPodHash: h1, stableRS: h0").pod("m", "new"), "new"},
		"argo: initial deployment": {held(t).rollout("u", "new", status("h1", "")).rollout("u", "new", status("h1", "h1")).pod("m", "new"), "new"},
		"argo: invalid":            {held(t).rollout("u", "", status("h0", "h0")).rollout("u", "new", status("h0", "h0")).pod("m", "new"), "new"},
		"argo: invalid in mid-release": {progressing(t).pod("m", "new").
			rollout("u", "other", status("h1", "h0")).pod("m", "new").pod("m", "other"), "other"},
		"argo: deleted":       {progressing(t).rolloutDeleted().pod("m", "new"), "new"},
		"argo: applied again": {progressing(t).rolloutDeleted().rollout("w", "new", status("h1", "h1")).pod("m", "new"), "new"},
		"argo: rolled back by another client": {progressing(t).set(argo, "r", "new", "Progressing").pod("m", "new").
			set(argo, "r", "new", "CleaningUp").gone(2).pod("m", "new"), "new"},
		"argo: retried before its rollback": {progressing(t).set(argo, "r", "new", "Progressing").pod("m", "new").
			rollout("u", "new", status("h1", "h0", "abort: true")).rollout("u", "new", status("h1", "h0")).
			set(argo, "r", "new", "CleaningUp").gone(2).pod("m", "new"), ""},
		"kruise: in a batch":      {held(t).target("new").batch("u", "Progressing", "new").pod("m", "new"), ""},
		"kruise: prepares":        {held(t).target("new").batch("u", "Preparing", "new").pod("m", "new"), "new"},
		"kruise: another's batch": {held(t).target("new").target("other").batch("u", "Progressing", "other").pod("m", "new"), "new"},
		"kruise: rolled back by another client": {held(t).target("new").batch("u", "Progressing", "new").
			set(kruise, "r", "new", "Progressing").pod("m", "new").set(kruise, "r", "new", "CleaningUp").gone(2).
			set(kruise, "r2", "new", "Progressing").pod("m", "new"), "new"},
		"kruise: released again": {held(t).target("new").batch("u", "Progressing", "new").
			set(kruise, "r", "new", "Progressing").pod("m", "new").set(kruise, "r", "new", "CleaningUp").gone(2).
			batch("w", "Progressing", "new").pod("m", "new"), ""},
		"batchrelease: with a partition":    {held(t).alone("batchPartition: 0").set(batch, "r", "new", "Progressing").pod("m", "new"), ""},
		"batchrelease: without a partition": {held(t).alone("").set(batch, "r", "new", "Progressing").pod("m", "new"), "new"},
		"batchrelease: withdrawn":           {held(t).alone("batchPartition: 0").alone("").set(batch, "r", "new", "Progressing").pod("m", "new"), "new"},
		"batchrelease: promoted by its end": {held(t).alone("batchPartition: 0").set(batch, "r", "new", "Progressing").alone("").pod("m", "new"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for kind, events := range map[string][]Event{"LeaderWorkerSet": test.history.events, "DisaggregatedSet": inRoles(t, test.history.events)} {
				found := judge(slices.Collect(maps.Values(hosts)), events)
				assert.False(t, test.violates == "" && len(found) > 0, "%s: violations of no rule: %q", kind, found)
				assert.False(t, test.violates != "" && (len(found) != 1 || !strings.Contains(found[0], "at revision "+test.violates+",")),
					"%s: want one violation about revision %s, got %q", kind, test.violates, found)
			}
		})
	}
}

// What a release adds belongs to its workload, also after it has become the workload.
func TestRuleCountsAddedSets(t *testing.T) {
	t.Parallel()
	const second = `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: m-2, labels: {%s lockstep.dev/revision: new}}
`
	add := func(s *story) *story {
		return s.add(false, second, "lockstep.dev/role: canary, lockstep.dev/stable: m,")
	}
	assert.Len(t, judge(nil, add(held(t)).pod("m-2", "new with more labels").events), 1, "want one violation")
	s := add(held(t).set("", "r", "new", "Progressing")).pod("m-2", "new with more labels").add(false, second, "").pod("m-2", "other")
	found := judge(nil, s.events)
	assert.True(t, len(found) == 1 && strings.Contains(found[0], "revision other"), "want one violation about revision other, got %q", found)
}

// A workload that a user creates under the old name of one that was handed over is not held, until it is adopted.
func TestRuleTellsRecreatedWorkloads(t *testing.T) {
	t.Parallel()
	const set = `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: %s, labels: {%s}%s}
`
	const record = `, annotations: {lockstep.dev/release: '{"version": 1, "saved": {"maxUnavailable": 1, "maxSurge": 0}}'}`
	recreated := func() *story {
		return held(t).set("", "r", "new", "HandingOver").
			add(false, set, "m-2", "lockstep.dev/role: canary, lockstep.dev/stable: m, lockstep.dev/revision: new", "").pod("m-2", "new").
			add(false, set, "m-2", "", record).add(true, set, "m", "", record).add(false, set, "m", "", "").pod("m", "third")
	}
	assert.Empty(t, judge(nil, recreated().events), "violations of no rule")
	for name, s := range map[string]*story{
		"the successor":        recreated().pod("m-2", "third"),
		"the old set's pod":    recreated().add(true, podManifest, "m", 1, "old").pod("m-2", "old"),
		"adopted, the new one": recreated().add(false, set, "m", "", record).pod("m", "new"),
	} {
		assert.Len(t, judge(nil, s.events), 1, "%s: want one violation", name)
	}
}

// TestFill: a list that fills a gap tells that objects are gone, and not since when.
func TestFill(t *testing.T) {
	set := func(name, deleted string) *unstructured.Unstructured {
		return object(t, `{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: %s, resourceVersion: "7"%s}}`, name, deleted)
	}
	o := &Observer{}
	known := map[string]*unstructured.Unstructured{
		"stays": set("stays", ""), "goes": set("goes", ""), "leaving": set("leaving", `, deletionTimestamp: "2026-01-01T00:00:00Z"`),
	}
	all := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{*set("stays", "")}}
	all.SetResourceVersion("12")
	assert.Equal(t, "12", o.fill(all, known, "9"))
	assert.Equal(t, []string{"stays"}, slices.Collect(maps.Keys(known)))
	at := map[string]uint64{}
	for _, e := range o.events {
		if at[e.Object.GetName()] = e.Version; e.Deleted == (e.Object.GetName() == "stays") {
			t.Errorf("%s: deleted is %t", e.Object.GetName(), e.Deleted)
		}
	}
	assert.Equal(t, map[string]uint64{"stays": 7, "goes": 12, "leaving": 9}, at)
}

// The StatefulSets of a child may create pods until their controller has seen that the release is over, and not later.
func TestRuleAwaitsStatefulSets(t *testing.T) {
	t.Parallel()
	const child = `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: m-new-prefill, labels: {disaggregatedset.x-k8s.io/name: m, disaggregatedset.x-k8s.io/revision: new}}
`
	const leaders = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: m-new-prefill, generation: %d, labels: {leaderworkerset.sigs.k8s.io/name: m-new-prefill}}
spec: {replicas: %d}
status: {observedGeneration: %d, replicas: %d}
`
	for name, test := range map[string]struct {
		generation, replicas, observed, exist int
		deleted                               bool
		violations                            int
	}{
		"it has replicas":        {1, 3, 1, 0, false, 0},
		"it is yet to be scaled": {2, 0, 1, 0, false, 0},
		"it has pods":            {2, 0, 2, 1, false, 0},
		"it was scaled":          {2, 0, 2, 0, false, 1},
		"it is deleted":          {1, 3, 1, 3, true, 1},
	} {
		s := held(t).add(false, child).add(false, leaders, 1, 3, 1, 0).set("", "r", "new", "Progressing").set("", "r", "new", "CleaningUp").
			add(test.deleted, leaders, test.generation, test.replicas, test.observed, test.exist).pod("m", "new")
		assert.Len(t, judge(nil, inRoles(t, s.events)), test.violations, name)
	}
}
