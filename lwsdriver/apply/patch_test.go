// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const noted = "lockstep.dev/release"

// applied applies p to the object in the cluster, as the API server does.
func applied(t *testing.T, p *patch, live *lws.LeaderWorkerSet) (*lws.LeaderWorkerSet, error) {
	t.Helper()
	raw, err := p.encode()
	require.NoError(t, err)
	decoded, err := jsonpatch.DecodePatch(raw)
	require.NoError(t, err)
	doc, err := json.Marshal(live)
	require.NoError(t, err)
	doc, err = decoded.Apply(doc)
	if err != nil {
		return nil, err
	}
	out := &lws.LeaderWorkerSet{}
	return out, json.Unmarshal(doc, out)
}

func TestPatchAnnotations(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		before       map[string]string
		value        string
		want         map[string]string
	}{
		{"no map yet", "an object may have no annotation at all", nil, "x", map[string]string{noted: "x"}},
		{
			"applied by kubectl", "the cache drops the value of last-applied; the patch must not",
			map[string]string{corev1.LastAppliedConfigAnnotation: "{}"}, "x",
			map[string]string{corev1.LastAppliedConfigAnnotation: "{}", noted: "x"},
		},
		{
			"changed", "others stay", map[string]string{"a": "b", noted: "x"}, "y", map[string]string{"a": "b", noted: "y"},
		},
		{"removed", "Disown leaves nothing", map[string]string{"a": "b", noted: "x"}, "", map[string]string{"a": "b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			live := lwstest.StableWorkload()
			live.ResourceVersion, live.Annotations = "5", tt.before
			p := newPatch(observe.StripWorkload(live.DeepCopy()), noted)
			p.annotate(noted, tt.value)
			got, err := applied(t, p, live)
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(tt.want, got.Annotations), "%s (-want +got)", tt.reason)
		})
	}
}

func TestPatchPreconditions(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		change       func(*lws.LeaderWorkerSet)
		ok           bool
	}{
		{
			"status", "LWS writes it all the time",
			func(w *lws.LeaderWorkerSet) { w.Status.ReadyReplicas, w.ResourceVersion = 3, "9" }, true,
		},
		{"another annotation", "it says nothing to us", func(w *lws.LeaderWorkerSet) { w.Annotations["owner"] = "x" }, true},
		{"spec", "it was edited", func(w *lws.LeaderWorkerSet) { w.Generation++ }, false},
		{"record", "another driver was faster", func(w *lws.LeaderWorkerSet) { w.Annotations[noted] = "other" }, false},
		{"record removed", "as is this", func(w *lws.LeaderWorkerSet) { delete(w.Annotations, noted) }, false},
		{"made again", "the same name is not the same object", func(w *lws.LeaderWorkerSet) { w.UID = "new" }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			live := lwstest.StableWorkload()
			live.Generation = 4
			p := newPatch(observe.StripWorkload(live.DeepCopy()), noted)
			p.setRolling(record.Native(record.Hold()))
			tt.change(live)
			_, err := applied(t, p, live)
			assert.Equal(t, tt.ok, err == nil, "applied after a change of %s: %v; %s", tt.name, err, tt.reason)
		})
	}
}

func TestPatchWithoutAnnotations(t *testing.T) {
	live := lwstest.StableWorkload()
	delete(live.Annotations, noted)
	p := newPatch(observe.StripWorkload(live.DeepCopy()), noted)
	p.annotate(noted, "x")
	_, err := applied(t, p, live)
	assert.NoError(t, err, "a first record is refused")
	live.Annotations[noted] = "of another driver"
	_, err = applied(t, p, live)
	assert.Error(t, err, "the record that another driver wrote first is overwritten")
}

// What the admission policy noted is taken with the record that has it, and with no other.
func TestPatchRemovesNotes(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		change       func(map[string]string)
		ok           bool
	}{
		{"as seen", "the record has it", func(map[string]string) {}, true},
		{"changed", "the user asked for something else since", func(a map[string]string) { a[record.WantedMaxSurge] = "2" }, false},
		{"more", "the user asked for more since", func(a map[string]string) { a[record.WantedPartition] = "0" }, false},
		{"removed", "another driver was faster", func(a map[string]string) { delete(a, record.WantedMaxSurge) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			live := lwstest.StableWorkload()
			live.Annotations[record.WantedMaxSurge] = "1"
			p := newPatch(observe.StripWorkload(live.DeepCopy()), noted)
			p.annotate(noted, "x")
			p.removeNotes()
			tt.change(live.Annotations)
			got, err := applied(t, p, live)
			require.Equal(t, tt.ok, err == nil, "%v; %s", err, tt.reason)
			if err == nil && got.Annotations[record.WantedMaxSurge] != "" {
				t.Errorf("the note is left: %v", got.Annotations)
			}
		})
	}
}

func TestFailedTestIsConflict(t *testing.T) {
	gr := schema.GroupResource{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}
	failed := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "test failed", 0, false)
	assert.ErrorIs(t, changedIfTestFailed(fmt.Errorf("patch: %w", failed)), observe.ErrChanged, "the answer to a failed test is not seen as such")
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: gr.Group, Kind: "LeaderWorkerSet"}, "vllm", nil)
	for _, err := range []error{nil, invalid, apierrors.NewConflict(gr, "vllm", errors.New("x")), errors.New("x")} {
		assert.NotErrorIs(t, changedIfTestFailed(err), observe.ErrChanged, "%v is seen as a failed test", err)
	}
	got := drivererr.Reason(observe.ContractError(changedIfTestFailed(failed)))
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_CONFLICT, got, "reason %s, want CONFLICT", got)
}
