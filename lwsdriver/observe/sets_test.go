// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"errors"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Bounds are read as they were written. What can't be read is named, and not taken for bounds.
func TestBoundsAreReadAsWritten(t *testing.T) {
	t.Parallel()
	set := &Set{ObjectMeta: metav1.ObjectMeta{Namespace: "serving", Name: "llm", UID: "1"}}
	batch := 1
	for _, want := range []plan.Bounds{
		{Roles: []plan.Role{{Name: "prefill", Replicas: 4, Size: 2, MaxSurge: 1}, {Name: "decode"}}, Entry: "decode", Stable: "a", Min: map[string]int{"0-prefill": 4, "0-decode": 2}},
		{
			Stable: "a", Min: map[string]int{"0-prefill": 4, "0-decode": 0}, Update: "b", Units: 3, Exact: map[string]int{"0-prefill": 3, "0-decode": 2},
			Target: &record.Target{Groups: "75%", Batch: &batch, At: lwstest.Noon.UTC()}, Others: []string{"llm-1-0123abcd-prefill"}, Routes: "r1",
		},
	} {
		object, err := BoundsFor(set, want, "{}")
		require.NoError(t, err)
		raw, err := object.MarshalJSON() // as the API server returns it
		require.NoError(t, err)
		read := &unstructured.Unstructured{}
		require.NoError(t, read.UnmarshalJSON(raw))
		got := stripBounds(read)
		diff := cmp.Diff(want, got.Bounds)
		assert.True(t, diff == "" && got.Problem == "" && metav1.IsControlledBy(got, set), "%+v differs: %s", got, diff)
	}
	broken := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"stable": "a", "min": "none"}}}
	got := stripBounds(broken)
	assert.NotEmpty(t, got.Problem, "%+v has no problem", got)
}

// A Scale has no labels, so the policy of scales takes its name for that of a child. The sets that could name a child so are known, but for its own.
func TestSetsByName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"llm-0123abcd-prefill":          "llm",
		"llm-1-0123abcd-prefill":        "llm-1 llm",
		"llm-1-0-0123abcd-prefill":      "llm-1-0 llm-1",
		"llm-20260101-0123abcd-prefill": "llm llm-20260101 llm",
		"llm-0123abcd-0123abcd-x-y":     "llm llm-0123abcd",
		"llm-0123ABCD-prefill":          "",
		"llm-0123abcd-":                 "",
		"llm-0123abc-prefill":           "",
		"-0123abcd-prefill":             "",
		"model":                         "",
	} {
		w := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "serving", Name: name}}
		found := ""
		for _, key := range namesakeSets(w) {
			found += " " + RefOf(key).GetName()
		}
		found = strings.TrimSpace(found)
		assert.Equal(t, want, found, name)
	}
	set := &Set{ObjectMeta: metav1.ObjectMeta{Namespace: "serving", Name: "llm-1", UID: "1"}}
	child := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "serving", Name: "llm-1-0123abcd-prefill", Labels: map[string]string{disaggregated.SetNameLabelKey: "llm-1"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, disaggregated.GroupVersion.WithKind(KindSet))},
	}}
	keys := namesakeSets(child)
	assert.True(t, len(keys) == 1 && RefOf(keys[0]).GetName() == "llm", "a child of llm-1 may be one of %v, too", keys)
}

// Only a policy whose failures deny, and a binding that denies, hold children within bounds.
func TestDenyingPolicies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		spec map[string]any
		want bool
	}{
		{"policy", map[string]any{"failurePolicy": "Fail"}, true},
		{"policy without a failure policy", map[string]any{}, true},
		{"policy that ignores failures", map[string]any{"failurePolicy": "Ignore"}, false},
		{"binding", map[string]any{"validationActions": []any{"Audit", "Deny"}}, true},
		{"policy as the API server defaults it", map[string]any{"matchConstraints": map[string]any{"namespaceSelector": map[string]any{}}}, true},
		{"policy with an exception", map[string]any{"matchConstraints": map[string]any{"excludeResourceRules": []any{map[string]any{}}}}, false},
		{"binding of some namespaces", map[string]any{
			"validationActions": []any{"Deny"}, "matchResources": map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"a": "b"}}},
		}, false},
		{"binding that audits", map[string]any{"validationActions": []any{"Audit"}}, false},
	} {
		assert.Equal(t, tt.want, DeniesRequests(&unstructured.Unstructured{Object: map[string]any{"spec": tt.spec}}), "%s: denies", tt.name)
	}
}

// The template of a revision is read from the children although LWS has added labels. One that LWS would give another revision is refused.
func TestChildrenTemplate(t *testing.T) {
	t.Parallel()
	spec := disaggregated.DisaggregatedRoleSpec{Name: "prefill"}
	spec.Spec.LeaderWorkerTemplate = *lwstest.StableWorkload().Spec.LeaderWorkerTemplate.DeepCopy()
	spec.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels = map[string]string{"tier": "model"}
	set := &Set{ObjectMeta: metav1.ObjectMeta{Namespace: "serving", Name: "llm"}, Roles: []plan.Role{{Name: "prefill"}}, Specs: []disaggregated.DisaggregatedRoleSpec{spec}}
	set.Revision = rolesRevision(set.Template())
	child := preflight.NewRole(set, spec, nil).Workload
	s := &Snapshot{Set: set, AddedObjects: map[string]*lws.LeaderWorkerSet{child.Name: child}}
	s.Roles, s.Children = set.Roles, []plan.Child{{Name: child.Name, Role: "prefill", Revision: set.Revision}}
	got, err := s.ChildrenTemplate(set.Revision)
	assert.True(t, err == nil && SameTemplate(got, set.Template()), "%v, %v", got, err)
	// LWS replaces the label app.
	set.Specs[0].Spec.LeaderWorkerTemplate.WorkerTemplate.Labels["app"] = "model"
	set.Revision = rolesRevision(set.Template())
	child.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels["app"] = "llm-prefill"
	s.Children[0].Revision = set.Revision
	got, err = s.ChildrenTemplate(set.Revision)
	assert.True(t, err == nil && SameTemplate(got, set.Template()), "with a label app: %v, %v", got, err)
	child.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image = "other"
	got, err = s.ChildrenTemplate(set.Revision)
	assert.Error(t, err, "%v is the template of another revision", got)
}

// LWS v0.10.0 gives new pods another label app than v0.9.0. A Service that selects by it is named before a release empties it.
func TestAppLabelOfNewPods(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		spec   string // of the set, beside its roles
		labels map[string]string
		want   string
	}{
		{"made by v0.9.0, and LWS is v0.10.0", `"slices": 1,`, map[string]string{"app": "llm-prefill"}, "llm-0-prefill"},
		{"made by v0.10.0, and LWS is v0.9.0", "", map[string]string{"app": "llm-0-prefill", sliceLabel: "0"}, "llm-prefill"},
		{"made by v0.10.0", `"slices": 2,`, map[string]string{"app": "llm-1-prefill", sliceLabel: "1"}, ""},
		{"made by v0.9.0", "", map[string]string{"app": "llm-prefill"}, ""},
	} {
		object := &unstructured.Unstructured{}
		require.NoError(t, object.UnmarshalJSON([]byte(`{"apiVersion":"disaggregatedset.x-k8s.io/v1","kind":"DisaggregatedSet","metadata":{"name":"llm","namespace":"serving"},
			"spec":{`+tt.spec+`"roles":[{"name":"prefill","spec":{"replicas":2,"leaderWorkerTemplate":{"size":2,"workerTemplate":{"spec":{"containers":[{"name":"server"}]}}}}}]}}`)))
		set, err := stripSet(object)
		require.NoError(t, err)
		child := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "serving", Name: "llm-" + set.Revision + "-prefill", Labels: tt.labels}}
		s := &Snapshot{Set: set, StableObject: set.View, AddedObjects: map[string]*lws.LeaderWorkerSet{child.Name: child}}
		s.Roles, s.Slices, s.Children = set.Roles, set.Slices, []plan.Child{{Name: child.Name, Role: "prefill", Revision: set.Revision, Replicas: 2}}
		s.Stable.Groups = []plan.Group{{Revision: set.Revision}}
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "serving", Name: "llm"}}
		service.Spec.Selector = map[string]string{"app": tt.labels["app"], lws.WorkerIndexLabelKey: "0"}
		found := ""
		for _, f := range preflight.Check(&preflight.Inventory{
			Workload: s.StableObject, Roles: s.RolesToBe(), Slices: s.Slices, Services: []*corev1.Service{service},
			Policy: record.Policy{Style: pb.Style_STYLE_PARTITION, Traffic: &traffic.Policy{StableService: "llm"}},
		}).GetFindings() {
			if f.GetRule() == "ServiceExcludesAdded" {
				found += f.GetMessage()
			}
		}
		assert.True(t, (found != "") == (tt.want != "") && strings.Contains(found, tt.want), "%s: preflight finds %q", tt.name, found)
	}
}

// The units of the last update get requests until they are removed, also once another template is released.
func TestSetupFollowsUnits(t *testing.T) {
	t.Parallel()
	s := &Snapshot{StableObject: lwstest.StableWorkload(), Set: &Set{}}
	s.Roles, s.Policy.Traffic = []plan.Role{{Name: "prefill", Replicas: 1}}, &traffic.Policy{}
	s.Record = &record.Record{Release: &record.Release{StableRevision: "a", UpdateRevision: "c"}}
	for _, tt := range []struct {
		name   string
		bounds *plan.Bounds
		want   string
	}{
		{"no bounds", nil, "c"},
		{"no units", &plan.Bounds{Stable: "a"}, "c"},
		{"units of the template before", &plan.Bounds{Stable: "a", Update: "b", Units: 1}, "b"},
	} {
		s.Bounds = tt.bounds
		assert.Equal(t, tt.want, setupOf(s).CanaryPin[disaggregated.RevisionLabelKey], "%s: the canary Service selects revision", tt.name)
	}
	if s.Record = nil; setupOf(s).StablePin[disaggregated.RevisionLabelKey] != "a" {
		t.Error("another client has deleted the record, and the stable Service does not select the revision in the bounds")
	}
}

// A release has the entry role whose leaders its Service selects, and keeps it while it is in flight, also if its record is removed: a driver
// that starts later reads it from the bounds.
func TestEntryRole(t *testing.T) {
	key, service := KeyFor(KindSet, lwstest.VLLM.Namespace, "llm"), "llm"
	policy := &pb.ReleasePolicy{
		Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"},
		Traffic: &pb.TrafficPolicy{StableService: service, HttpRoutes: []string{"llm"}},
	}
	began := func(phase record.Phase) *unstructured.Unstructured {
		raw, err := record.EncodePolicy(policy)
		require.NoError(t, err)
		release := &record.Release{ID: "r1", Policy: raw, StableRevision: "a", UpdateRevision: "b", Phase: phase, StartedAt: lwstest.Noon, PhaseAt: lwstest.Noon, EntryRole: "decode"}
		set := llm("Static")
		set.SetAnnotations(lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{UID: "set", Saved: record.Native(record.Hold()), Release: release}).Annotations)
		return set
	}
	role := func(name string) map[string]string { return map[string]string{disaggregated.RoleLabelKey: name} }
	for _, test := range []struct {
		name     string
		set      *unstructured.Unstructured
		selector map[string]string
		policy   *pb.ReleasePolicy
		bounds   *plan.Bounds
		now      string
		want     string
	}{
		{name: "decode", set: llm("Static"), selector: role("decode"), policy: policy, now: "prefill", want: "decode"},
		{name: "the first", set: llm("Static"), selector: role("prefill"), policy: policy, now: "prefill", want: "prefill"},
		{name: "none", set: llm("Static"), selector: role("embed"), policy: policy, now: "prefill", want: "prefill"},
		{name: "both", set: llm("Static"), selector: map[string]string{disaggregated.SetNameLabelKey: "llm"}, policy: policy, now: "prefill", want: "prefill"},
		{name: "no traffic", set: llm("Static"), selector: role("decode"), policy: &pb.ReleasePolicy{}, now: "prefill", want: "prefill"},
		{name: "in flight", set: began(record.Progressing), selector: role("prefill"), policy: policy, now: "decode", want: "decode"},
		{name: "over", set: began(record.Promoted), selector: role("prefill"), policy: policy, now: "decode", want: "prefill"},
		{
			name: "no record", set: llm("Static"), selector: role("prefill"), policy: policy,
			bounds: &plan.Bounds{Entry: "decode", Stable: "a", Update: "b", Units: 1}, now: "decode", want: "decode",
		},
		{name: "no record, over", set: llm("Static"), selector: role("prefill"), policy: policy, bounds: &plan.Bounds{Entry: "decode", Stable: "a"}, now: "decode", want: "prefill"},
	} {
		t.Run(test.name, func(t *testing.T) {
			core, generic := setsServed(true, test.set)
			if test.bounds != nil {
				bounds, err := BoundsFor(&Set{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "llm", UID: "set"}}, *test.bounds, "")
				if err == nil {
					_, err = generic.Resource(BoundsResource).Namespace(key.Namespace).Create(t.Context(), bounds, metav1.CreateOptions{})
				}
				require.NoError(t, err)
			}
			require.NoError(t, core.Tracker().Add(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: lwstest.VLLM.Namespace, Name: service}, Spec: corev1.ServiceSpec{Selector: test.selector},
			}))
			b := newFixtureOn(t, core, generic)
			b.run()
			b.Nearby.Start()
			var s *Snapshot
			b.eventually("the caches are filled", func() (done bool) {
				s, _ = b.Observe(key)
				return s != nil && !b.Nearby.Pending() && (test.bounds == nil || s.Bounds != nil)
			})
			enters := func(want string) {
				t.Helper()
				replicas := map[string]int32{"prefill": 4, "decode": 2}[want]
				pin := s.SetupFor(record.Policy{Traffic: &traffic.Policy{}}).StablePin[disaggregated.RoleLabelKey]
				if got := plan.EntryRole(s.Observation); got != want || pin != want || *s.StableObject.Spec.Replicas != replicas {
					t.Errorf("the entry role is %s, the Service selects %s, and the spec has %d groups; want %s", got, pin, *s.StableObject.Spec.Replicas, want)
				}
			}
			enters(test.now)
			b.Enter(s, test.policy)
			enters(test.want)
			if test.name != "in flight" {
				return
			}
			_, err := generic.Resource(SetsResource).Namespace(key.Namespace).Update(t.Context(), llm("Static"), metav1.UpdateOptions{})
			require.NoError(t, err)
			b.eventually("the record is gone", func() bool {
				s, _ = b.Observe(key)
				return s.Record == nil
			})
			enters("decode")
		})
	}
}

// Kinds that are installed while the driver runs are found by the next call about a set, also if nothing else tells of them.
func TestKindsInstalledLate(t *testing.T) {
	key := KeyFor(KindSet, lwstest.VLLM.Namespace, "llm")
	core, generic := setsServed(true, llm("Static"))
	bounds, err := BoundsFor(&Set{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "llm", UID: "set"}}, plan.Bounds{Stable: "a"}, "")
	if err == nil {
		_, err = generic.Resource(BoundsResource).Namespace(key.Namespace).Create(t.Context(), bounds, metav1.CreateOptions{})
	}
	require.NoError(t, err)
	var installed atomic.Bool
	var looked atomic.Int32
	fakes.React(&core.Fake, "get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		if installed.Load() {
			return false, nil, nil
		}
		looked.Add(1)
		return true, nil, apierrors.NewNotFound(schema.GroupResource{}, "")
	})
	b := newFixtureOn(t, core, generic)
	b.run()
	b.eventually("autoscalers, sets and bounds are looked for", func() bool { return looked.Load() >= 3 })
	installed.Store(true)
	b.Disaggregated.Start()
	b.eventually("the set and its bounds are found", func() bool { return b.Disaggregated.Get(key) != nil && b.Disaggregated.Bounds(key) != nil })
}

// A set that can't be read is not one that does not exist: hosts take that for the end of its release.
func TestSetsUnread(t *testing.T) {
	t.Parallel()
	for want, refusal := range map[pb.ErrorReason]error{
		pb.ErrorReason_ERROR_REASON_FORBIDDEN: apierrors.NewForbidden(SetsResource.GroupResource(), "",
			errors.New(`User "lockstep" cannot list resource "disaggregatedsets" in API group "disaggregatedset.x-k8s.io"`)),
		pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE: apierrors.NewServiceUnavailable("later"),
	} {
		core, generic := setsServed(true, llm("Static"))
		fakes.React(&generic.Fake, "list", SetsResource.Resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refusal })
		b := newFixtureOn(t, core, generic)
		b.run()
		b.eventually("the refusal is known", func() bool { return b.Disaggregated.sets.Started() && !b.Disaggregated.sets.Pending() })
		_, err := b.Observe(KeyFor(KindSet, lwstest.VLLM.Namespace, "llm"))
		assert.Equal(t, want, drivererr.Reason(err), "%v", err)
	}
	b := newFixture(t)
	b.run()
	b.eventually("it is known that the kind is not installed", func() bool { return b.Disaggregated.sets.Err() == nil })
	_, err := b.Observe(KeyFor(KindSet, lwstest.VLLM.Namespace, "llm"))
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, drivererr.Reason(err), "%v", err)
}

// A child that LeaderWorkerSet has deleted counts until the last of its pods is gone, also for a driver that starts meanwhile. The end of each pod
// wakes the set.
func TestDeletedChildren(t *testing.T) {
	key := KeyFor(KindSet, lwstest.VLLM.Namespace, "llm")
	for name, starts := range map[string]bool{"LWS deletes it": false, "the driver starts": true} {
		t.Run(name, func(t *testing.T) {
			core, generic := setsServed(true, llm("Static"))
			child, existing := childOf5(), []*lws.LeaderWorkerSet{}
			child.Labels[sliceLabel] = "1"
			pods := core.CoreV1().Pods(child.Namespace)
			names := []string{child.Name + "-1", child.Name + "-1-1"}
			for worker, name := range names {
				pod := lwstest.Pod(name, func(p *corev1.Pod) {
					maps.Copy(p.Labels, child.Labels)
					p.Labels[lws.SetNameLabelKey], p.Labels[lws.WorkerIndexLabelKey] = child.Name, strconv.Itoa(worker)
				})
				require.NoError(t, core.Tracker().Add(pod))
			}
			if !starts {
				existing = append(existing, child)
			}
			b := newFixtureOn(t, core, generic, existing...)
			b.run()
			b.eventually("the set is known", func() bool { return b.Caches.Synced() && b.Disaggregated.Get(key) != nil })
			look := func() *Snapshot {
				s, err := b.Observe(key)
				require.NoError(t, err)
				return s
			}
			if !starts {
				s := look()
				require.True(t, len(s.Children) == 1 && len(s.DeletedChildren) == 0, "%+v %+v", s.Children, s.DeletedChildren)
				require.NoError(t, b.Sets.LeaderworkersetV1().LeaderWorkerSets(child.Namespace).Delete(t.Context(), child.Name, metav1.DeleteOptions{}))
				b.eventually("it is deleted", func() bool { return len(look().Children) == 0 })
			}
			for _, name := range names {
				left := look().DeletedChildren
				require.True(t, len(left) == 1 && left[0].Role == "prefill" && left[0].Revision == "a" && left[0].Slice == 1 && len(left[0].Groups) == 1,
					"until %s is gone: %+v", name, left)
				changed, stop := b.Changes.Subscribe(key)
				require.NoError(t, pods.Delete(t.Context(), name, metav1.DeleteOptions{}))
				<-changed
				stop()
			}
			b.eventually("none is left", func() bool { return len(look().DeletedChildren) == 0 })
			assert.Empty(t, b.Caches.Groups.children)
		})
	}
}
