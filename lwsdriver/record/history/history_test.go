// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

var (
	noon     = time.Date(2026, 5, 4, 12, 0, 0, 123456789, time.UTC)
	workload = &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm", UID: "12345678-9abc"}}
	entry    = plan.Entry{Revision: "abc", Number: 3, At: noon, By: "kubectl-edit", Release: "r1", Owner: "jo"}
)

func template() record.Template {
	return record.Template{
		LeaderWorkerTemplate: lws.LeaderWorkerTemplate{
			Size: ptr.To[int32](2),
			LeaderTemplate: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				InitContainers: []corev1.Container{{Name: "load", Image: "load:1"}},
				Containers:     []corev1.Container{{Name: "server", Image: "leader:1"}, {Name: "log", Image: "log:1"}},
			}},
			WorkerTemplate: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "server", Image: "vllm:1"}, {Name: "log", Image: "log:1"}},
			}},
		},
		NetworkConfig: &lws.NetworkConfig{SubdomainPolicy: ptr.To(lws.SubdomainShared)},
	}
}

func object(t *testing.T) *appsv1.ControllerRevision {
	t.Helper()
	cr, err := Object(workload, entry, template())
	require.NoError(t, err)
	return cr
}

// What is kept is read as what was written; and LWS and the StatefulSet controller, who list by labels, never find it.
func TestObject(t *testing.T) {
	cr := object(t)
	got := Read(cr)
	assert.NotEmpty(t, got.Template, "no digest of the template")
	want := entry
	want.Template = got.Template
	assert.Empty(t, cmp.Diff(want, got), "read (-want +got)")
	back, err := Template(cr)
	diff := cmp.Diff(template(), back)
	assert.True(t, diff == "" && err == nil, "template: %v (-want +got):\n%s", err, diff)
	owner := metav1.GetControllerOf(cr)
	if owner == nil || owner.UID != workload.UID || owner.BlockOwnerDeletion != nil || cr.Name != "vllm-lockstep-12345678-abc" {
		t.Errorf("%s is owned by %+v", cr.Name, owner)
	}
	for _, selector := range []string{lws.SetNameLabelKey, lws.RevisionKey, lws.WorkerIndexLabelKey, lws.GroupIndexLabelKey} {
		s, err := labels.Parse(selector)
		if err != nil || s.Matches(labels.Set(cr.Labels)) {
			t.Errorf("%s selects it: %v (%v)", selector, cr.Labels, err)
		}
	}
}

// TestPatch checks that a patch changes the metadata of the same template, and is refused once the snapshot was changed.
func TestPatch(t *testing.T) {
	cr := object(t)
	cr.UID, cr.ResourceVersion = "u", "7"
	next := Read(cr)
	next.Number, next.Release, next.Outcome, next.Ended = 5, "r2", plan.Promoted, noon.Add(time.Hour)
	patch, err := Patch(next, cr)
	require.NoError(t, err)
	before, err := json.Marshal(cr)
	require.NoError(t, err)
	raw, err := jsonpatch.MergePatch(before, patch)
	require.NoError(t, err)
	after := &appsv1.ControllerRevision{}
	require.NoError(t, json.Unmarshal(raw, after))
	assert.Empty(t, cmp.Diff(next, Read(after)), "after the patch (-want +got)")
	for _, precondition := range []string{`"resourceVersion":"7"`, `"uid":"u"`} {
		assert.Contains(t, string(patch), precondition, "%s has no %s", patch, precondition)
	}
}

// TestReadDetectsEdits checks that every edit is detected, and not trusted.
func TestReadDetectsEdits(t *testing.T) {
	for name, tt := range map[string]struct {
		edit    func(*appsv1.ControllerRevision)
		problem string
	}{
		"nothing": {func(*appsv1.ControllerRevision) {}, ""},
		"written otherwise": {func(cr *appsv1.ControllerRevision) {
			var v any
			if json.Unmarshal(cr.Data.Raw, &v) != nil {
				panic("no JSON")
			}
			cr.Data.Raw, _ = json.MarshalIndent(v, "", "  ")
		}, ""},
		"template":   {func(cr *appsv1.ControllerRevision) { replace(&cr.Data.Raw, "vllm:1", "vllm:9") }, "template is not the one"},
		"no JSON":    {func(cr *appsv1.ControllerRevision) { cr.Data.Raw = []byte("{") }, "read template"},
		"number":     {func(cr *appsv1.ControllerRevision) { cr.Revision++ }, "revision number"},
		"revision":   {func(cr *appsv1.ControllerRevision) { cr.Labels[record.RevisionLabel] = "def" }, "label"},
		"annotation": {func(cr *appsv1.ControllerRevision) { renote(cr, `"jo"`, `"al"`) }, "was changed since the driver wrote it"},
		"field":      {func(cr *appsv1.ControllerRevision) { renote(cr, `"By"`, `"From"`) }, "unknown field"},
		"type":       {func(cr *appsv1.ControllerRevision) { renote(cr, `"jo"`, `1`) }, "Owner of type string"},
		"version":    {func(cr *appsv1.ControllerRevision) { renote(cr, `"Version":1`, `"Version":2`) }, "version 2"},
		"more":       {func(cr *appsv1.ControllerRevision) { cr.Annotations[record.SnapshotAnnotation] += "{}" }, "data after the value"},
		"removed":    {func(cr *appsv1.ControllerRevision) { cr.Annotations = nil }, record.SnapshotAnnotation},
	} {
		cr := object(t)
		cr.CreationTimestamp = metav1.NewTime(noon)
		tt.edit(cr)
		e := Read(cr)
		assert.True(t, (e.Problem == "") == (tt.problem == "") && strings.Contains(e.Problem, tt.problem),
			"%s: problem %q, want %q", name, e.Problem, tt.problem)
		_, err := Template(cr)
		assert.Equal(t, tt.problem == "", err == nil, "%s: the template is given away: %v", name, err)
		assert.False(t, tt.problem != "" && (e.Release != "" || e.Template != "" || !strings.Contains(e.Problem, "delete it") || !strings.Contains(e.Problem, cr.Name)),
			"%s: read as %+v", name, e)
	}
}

func renote(cr *appsv1.ControllerRevision, from, to string) {
	raw := []byte(cr.Annotations[record.SnapshotAnnotation])
	replace(&raw, from, to)
	cr.Annotations[record.SnapshotAnnotation] = string(raw)
}

func replace(raw *[]byte, from, to string) {
	text := strings.Replace(string(*raw), from, to, 1)
	if text == string(*raw) {
		panic(from + " is not in " + text)
	}
	*raw = []byte(text)
}

func TestImages(t *testing.T) {
	want := []string{"server=leader:1", "log=log:1", "load=load:1", "server=vllm:1"}
	assert.Empty(t, cmp.Diff(want, Images(template())), "images (-want +got)")
}

// FuzzRead: any value of the annotation is read or reported, and what is trusted is what the driver
// would write.
func FuzzRead(f *testing.F) {
	cr, err := Object(workload, entry, template())
	require.NoError(f, err)
	good := cr.Annotations[record.SnapshotAnnotation]
	for _, seed := range []string{good, "", "{}", strings.Replace(good, "r1", "r2", 1), good + good, "null"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := cr.DeepCopy()
		c.Annotations[record.SnapshotAnnotation] = text
		e := Read(c)
		if e.Problem != "" {
			return
		}
		again, err := noteOf(e)
		require.NoError(t, err)
		c.Annotations[record.SnapshotAnnotation] = again
		assert.Empty(t, cmp.Diff(e, Read(c)), "read, written and read again")
	})
}
