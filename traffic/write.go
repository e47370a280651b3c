// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"reflect"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Write is one request to the API server. Its precondition is the version of the object that it was computed from.
type Write struct {
	Verb Verb
	Key  Key
	// Body is a JSON merge patch, or the object to create.
	Body map[string]any
	// UID and ResourceVersion are the precondition of a delete; the body of a patch contains its own.
	UID, ResourceVersion string
	// Why is the explanation for events and logs.
	Why string
	// Moves is true if it changes which requests the canary gets.
	Moves bool
	// Grows is true if the canary may get more requests by it: a larger share, a mirror or a header route.
	Grows bool
	// AfterOthers is true if the API server refused this write, or one of a later object: what else is due comes first.
	AfterOthers bool
	// ChangedBy is the field manager that changed the object after Lockstep, and ChangedAt is when. Empty means none that is known.
	ChangedBy string
	ChangedAt metav1.Time
	// Pins is true if it pins the stable Service or pool to the leaders of one side.
	Pins bool
}

// Verb is what a Write does.
type Verb string

// The verbs of a Write.
const (
	Create Verb = "create"
	Patch  Verb = "patch"
	Delete Verb = "delete"
)

func (w *Write) String() string { return fmt.Sprintf("%s %s: %s", w.Verb, w.Key, w.Why) }

func noWrite() (*Write, error) { return nil, nil } //nolint:nilnil // no write is an answer

func patchOf(key Key, base metav1.Object, p patch, why string) *Write {
	p.set(base.GetResourceVersion(), "metadata", "resourceVersion")
	write := &Write{Verb: Patch, Key: key, Body: p, Why: why}
	if last := LastWriter(base.GetManagedFields(), releasedField(base)); last != nil {
		write.ChangedBy, write.ChangedAt = last.Manager, *last.Time
	}
	return write
}

func createOf(key Key, o runtime.Object, why string) (*Write, error) {
	body, err := toJSON(o)
	if err != nil {
		return nil, err
	}
	return &Write{Verb: Create, Key: key, Body: body, Why: why}, nil
}

func deleteOf(key Key, base metav1.Object, why string) *Write {
	return &Write{Verb: Delete, Key: key, UID: string(base.GetUID()), ResourceVersion: base.GetResourceVersion(), Why: why}
}

// toJSON returns a typed object as the body of a generic client's request.
func toJSON(o runtime.Object) (map[string]any, error) {
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "encode %T: %v", o, err)
	}
	// A typed object encodes an empty status, which is no part of what a release writes.
	delete(body, "status")
	return body, nil
}

// patch is a JSON merge patch.
type patch map[string]any

func (p patch) set(value any, path ...string) {
	node := map[string]any(p)
	for _, step := range path[:len(path)-1] {
		next, ok := node[step].(map[string]any)
		if !ok {
			next = map[string]any{}
			node[step] = next
		}
		node = next
	}
	node[path[len(path)-1]] = value
}

// copyMetadata sets the labels and annotations in which have differs from want. Foreign ones are kept.
func (p patch) copyMetadata(have, want metav1.Object) {
	for field, of := range map[string][2]map[string]string{
		"labels":      {have.GetLabels(), want.GetLabels()},
		"annotations": {have.GetAnnotations(), want.GetAnnotations()},
	} {
		for k, v := range of[1] {
			if old, ok := of[0][k]; !ok || old != v {
				p.set(v, "metadata", field, k)
			}
		}
	}
}

// driftOf returns the merge patch from a generated object to what it should be, given the specs of both: empty if there is no drift. Foreign
// labels and annotations are kept.
func driftOf(have, want metav1.Object, haveSpec, wantSpec any) patch {
	p := patch{}
	was, _ := haveSpec.(object)
	is, _ := wantSpec.(object)
	if diff := mergePatch(was, is); len(diff) > 0 {
		p.set(diff, "spec")
	}
	p.copyMetadata(have, want)
	return p
}

// mergePatch returns the JSON merge patch from one object to another, empty if they are equal.
func mergePatch(have, want object) object {
	out := object{}
	for k := range have {
		if _, stays := want[k]; !stays {
			// Null removes a key in a JSON merge patch.
			out[k] = nil
		}
	}
	for k, v := range want {
		old, was := have[k].(object)
		next, is := v.(object)
		switch {
		case was && is:
			if diff := mergePatch(old, next); len(diff) > 0 {
				out[k] = diff
			}
		case !reflect.DeepEqual(have[k], v):
			// A merge patch replaces lists as a whole, so only objects are compared by key.
			out[k] = v
		}
	}
	return out
}

func anyMap(in map[string]string) object {
	out := make(object, len(in))
	for k, v := range in {
		out[k] = v
	}
	return out
}

// LastWriter returns the entry of the field manager that wrote a field last, such as "f:spec" in quotes, or nil if it is unknown, or Lockstep.
// Of two in the same second it is the other one, since this is asked about what Lockstep has to repair.
func LastWriter(entries []metav1.ManagedFieldsEntry, field string) *metav1.ManagedFieldsEntry {
	var last, own *metav1.ManagedFieldsEntry
	for i := range entries {
		e := &entries[i]
		if e.Time == nil || e.Subresource == "status" || !hasField(e, field) {
			continue
		}
		of := &last
		if e.Manager == FieldManager {
			of = &own
		}
		if *of == nil || (*of).Time.Before(e.Time) {
			*of = e
		}
	}
	// If Lockstep wrote last, the drift is not that of another manager.
	if last == nil || own != nil && last.Time.Before(own.Time) {
		return nil
	}
	return last
}

// hasField reports whether an entry is about a field, also once only its name is kept.
func hasField(e *metav1.ManagedFieldsEntry, field string) bool {
	return e.FieldsType == field || e.FieldsV1 != nil && strings.Contains(e.FieldsV1.GetRawString(), field)
}

// releasedField returns what a release writes of an object: an Ingress has its share in annotations.
func releasedField(o metav1.Object) string {
	if _, ok := o.(*networkingv1.Ingress); ok {
		return `"f:annotations"`
	}
	return `"f:spec"`
}

// StripFields drops the fields of managers, but neither their names nor which of them wrote what a release writes.
func StripFields(o metav1.Object) {
	entries, field := o.GetManagedFields(), releasedField(o)
	for i := range entries {
		e := &entries[i]
		if hasField(e, field) {
			// The fields are a large part of an object in a cache, and only this one is asked for.
			e.FieldsType = field
		}
		e.FieldsV1 = nil
	}
	o.SetManagedFields(entries)
}

// KeepLastWriter drops all of an object's managed fields but the name of who wrote last what a release writes.
func KeepLastWriter(o metav1.Object) {
	var kept []metav1.ManagedFieldsEntry
	if last := LastWriter(o.GetManagedFields(), releasedField(o)); last != nil {
		kept = []metav1.ManagedFieldsEntry{{Manager: strings.Clone(last.Manager), Time: last.Time, FieldsType: releasedField(o)}}
	}
	o.SetManagedFields(kept)
}
