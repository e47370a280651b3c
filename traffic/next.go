// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Next returns the next write that leads from the world to what is desired, nil if there is none to make now. The order
// is safe in both directions: fence, canary Service, routes on the way up; routes, canary Service, fence on the way
// down. Shares grow only while the canary has ready endpoints; they shrink whatever else is wrong.
//
// That the gateways have taken the routes before the canary Service goes is for the caller to see to: see
// [View.Verified].
func Next(s Setup, d Desired, w World) (*Write, error) {
	d = d.complete()
	if err := d.check(); err != nil {
		return nil, err
	}
	for _, step := range []func(Setup, Desired, World) (*Write, error){
		retreat, fence, prepare, advance, cleanUp, lift, disown,
	} {
		if write, err := step(s, d, w); write != nil || err != nil {
			return write, err
		}
	}
	return nil, nil //nolint:nilnil // no write is an answer
}

// fence pins the stable Service.
func fence(s Setup, d Desired, w World) (*Write, error) {
	if !d.Fenced {
		return none()
	}
	if w.Stable == nil {
		return nil, missing(s, Key{KindService, s.Policy.StableService})
	}
	want, changed, err := Fence(w.Stable, s)
	if err != nil || !changed {
		return nil, err
	}
	return patchFence(s, w.Stable, want, "pin it to the stable leaders"), nil
}

// lift takes the fence off.
func lift(s Setup, d Desired, w World) (*Write, error) {
	if d.Fenced || w.Stable == nil {
		return none()
	}
	want, changed, err := Lift(w.Stable)
	if err != nil || !changed {
		return nil, err
	}
	return patchFence(s, w.Stable, want, "give back its selector"), nil
}

func patchFence(s Setup, have, want *corev1.Service, why string) *Write {
	p := patch{}
	p.set(replaced(have.Spec.Selector, want.Spec.Selector), "spec", "selector")
	if note, noted := want.Annotations[FenceAnnotation]; noted {
		p.set(note, "metadata", "annotations", FenceAnnotation)
	} else {
		p.set(nil, "metadata", "annotations", FenceAnnotation)
	}
	return patchOf(Key{KindService, s.Policy.StableService}, have, p, why)
}

// prepare makes the canary Service and keeps it as it should be.
func prepare(s Setup, d Desired, w World) (*Write, error) {
	if !d.Prepared {
		return none()
	}
	want, err := CanaryService(w.Stable, s)
	if err != nil {
		return nil, err
	}
	key := Key{KindService, s.Policy.CanaryService}
	switch {
	case w.Canary == nil:
		body, err := toJSON(want)
		if err != nil {
			return nil, err
		}
		return &Write{Verb: Create, Key: key, Body: body, Why: "select the canary's leaders"}, nil
	case !madeFor(w.Canary, s):
		return nil, taken(s)
	case w.Canary.DeletionTimestamp != nil:
		return none() // it will be made again once it is gone
	case !ownedBy(w.Canary, s):
		return deleteOf(key, w.Canary, "it belongs to an earlier workload of the same name"), nil
	}
	if p := serviceDrift(w.Canary, want); p != nil {
		return patchOf(key, w.Canary, p, "make it follow the stable Service"), nil
	}
	return none()
}

// retreat takes from the canary what it should no longer get.
func retreat(s Setup, d Desired, w World) (*Write, error) {
	return steer(s, d, w, RouteRetreat)
}

// advance gives the canary what it should get, if it can serve.
func advance(s Setup, d Desired, w World) (*Write, error) {
	if len(w.CanaryReady) == 0 || w.Canary == nil {
		return none()
	}
	return steer(s, d, w, RouteRules)
}

// steer writes the rules of the first route that has others. A route that is gone leads nowhere.
func steer(s Setup, d Desired, w World, rulesOf func(Route, Setup, Desired) ([]any, bool, error)) (*Write, error) {
	for _, r := range w.routes(s) {
		if r.Object.GetDeletionTimestamp() != nil {
			continue
		}
		rules, changed, err := rulesOf(r, s, d)
		if err != nil {
			return nil, err
		}
		if changed {
			p := patch{}
			p.set(rules, "spec", "rules")
			return patchOf(r.Key, r.Object, p, fmt.Sprintf("from %d %% to the canary towards %d %%", RouteWeight(r, s), d.Weight)), nil
		}
	}
	return none()
}

// cleanUp deletes the canary Service. Others' Services of its name are left alone.
func cleanUp(s Setup, d Desired, w World) (*Write, error) {
	if d.Prepared || w.Canary == nil || w.Canary.DeletionTimestamp != nil || !madeFor(w.Canary, s) {
		return none()
	}
	return deleteOf(Key{KindService, s.Policy.CanaryService}, w.Canary, "no request goes to the canary"), nil
}

// disown gives up the fields that are the user's again: whoever applies the manifest with server-side apply would
// otherwise meet a conflict with a release that is over.
func disown(s Setup, d Desired, w World) (*Write, error) {
	if d.Fenced {
		return none()
	}
	if w.Stable != nil {
		if write := disownOf(Key{KindService, w.Stable.Name}, w.Stable); write != nil {
			return write, nil
		}
	}
	for _, r := range w.routes(s) {
		if write := disownOf(r.Key, r.Object); write != nil {
			return write, nil
		}
	}
	return none()
}

func disownOf(key Key, o metav1.Object) *Write {
	fields := o.GetManagedFields()
	if o.GetDeletionTimestamp() != nil || !slices.ContainsFunc(fields, Ours) {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(fields), Ours)
	if len(others) == 0 {
		others = []metav1.ManagedFieldsEntry{{}} // the API server ignores an empty list; this one empties the record
	}
	p := patch{}
	p.set(others, "metadata", "managedFields")
	return patchOf(key, o, p, "give up its fields")
}

// Ours says whether an entry is about fields that this package has written.
func Ours(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == FieldManager && entry.Subresource == ""
}

func none() (*Write, error) { return nil, nil } //nolint:nilnil // no write is an answer

func patchOf(key Key, base metav1.Object, p patch, why string) *Write {
	p.set(base.GetResourceVersion(), "metadata", "resourceVersion")
	return &Write{Verb: Patch, Key: key, Body: p, Why: why}
}

func deleteOf(key Key, base metav1.Object, why string) *Write {
	return &Write{Verb: Delete, Key: key, UID: string(base.GetUID()), ResourceVersion: base.GetResourceVersion(), Why: why}
}

// toJSON turns a typed object into what a generic client sends.
func toJSON(o runtime.Object) (map[string]any, error) {
	body := map[string]any{}
	raw, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(raw, &body)
	}
	if err != nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "encode %T: %v", o, err)
	}
	delete(body, "status")
	return body, nil
}
