// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// NoteAnnotation on a held autoscaler is its user's configuration.
const NoteAnnotation = "lockstep.dev/held"

// Kinds of autoscalers.
const (
	KindHPA          = "HorizontalPodAutoscaler"
	KindScaledObject = "ScaledObject"
)

// Autoscaler is what a release depends on of an object that scales a workload. The size of each part is bounded: caches keep it.
type Autoscaler struct {
	// ObjectMeta has the annotations that a hold is in: the note, and those by which KEDA pauses.
	metav1.ObjectMeta
	State

	// settings are those that a hold may change: the selectPolicy of an HPA's scaleUp and scaleDown, and annotations of a ScaledObject.
	settings map[string]string
	// bare is true if an HPA has no behavior of its user's: none, or that of heldBare.
	bare bool
}

// State is how an autoscaler scales.
type State struct {
	// Kind is KindHPA or KindScaledObject.
	Kind string
	// Workload is the name of the LeaderWorkerSet that it scales, or that of a [RoleScaler]. Empty means it scales something else.
	Workload string
	// Scales are the directions in which it may change the number of replicas.
	Scales Directions
	// ToZero is true if it may remove the last replica.
	ToZero bool
	// Max is the most replicas that its user allows.
	Max int
	// Limited is true if its controller would remove replicas now, but for the limits of its policies.
	Limited bool
}

// Hold returns the merge patch that keeps it from scaling in some directions and restores the others, with a note of what to
// restore and for which workload it is held.
func (a *Autoscaler) Hold(workload string, hold Hold) (map[string]any, error) {
	// An unreadable note is replaced. What it could tell is lost unless it is still in the settings.
	before, _ := ReadNote(a.Annotations)
	next := Note{Workload: workload, Hold: hold, Bare: a.bare}
	p, annotations := a.restore(cmp.Or(before, &Note{}), &next)
	raw, err := json.Marshal(next)
	if err != nil {
		return nil, fmt.Errorf("encode note: %w", err)
	}
	annotations[NoteAnnotation] = string(raw)
	return p, nil
}

// Release returns the merge patch that restores the user's configuration and removes the note, nil without a note. Fields that were
// changed since Hold stay.
func (a *Autoscaler) Release() (map[string]any, error) {
	before, err := ReadNote(a.Annotations)
	if err != nil || before == nil {
		return nil, err
	}
	p, annotations := a.restore(before, &Note{})
	annotations[NoteAnnotation] = nil
	return p, nil
}

// holds are the settings of each hold.
var holds = map[string]map[Hold]map[string]string{
	KindHPA:          {HoldDown: {scaleDown: disabled}, HoldAll: {scaleUp: disabled, scaleDown: disabled}},
	KindScaledObject: {HoldDown: {pausedScaleInAnnotation: paused}, HoldAll: {pausedAnnotation: paused}},
}

// restore returns the merge patch, and its annotations, that restores what the hold of a note changed and then makes that of the next,
// which gets the user's settings.
func (a *Autoscaler) restore(before, next *Note) (p, annotations map[string]any) {
	changes, user := map[string]any{}, maps.Clone(a.settings)
	for name, value := range holds[a.Kind][before.Hold] {
		if a.settings[name] != value {
			continue // changed since
		}
		delete(user, name)
		changes[name] = nil
		if was, ok := before.User[name]; ok {
			user[name], changes[name] = was, was
		}
	}
	next.User = map[string]string{}
	for name, value := range holds[a.Kind][next.Hold] {
		was, ok := user[name]
		if len(was) > maxSetting {
			continue // KEDA is paused: it reads any value that is no boolean as true
		}
		if changes[name] = value; ok {
			next.User[name] = was
		}
	}
	annotations = map[string]any{}
	p = map[string]any{"metadata": map[string]any{"annotations": annotations}}
	switch {
	case a.Kind == KindScaledObject:
		maps.Copy(annotations, changes)
	case a.bare:
		p["spec"] = map[string]any{"behavior": heldBare(next.Hold)}
	case len(changes) > 0:
		behavior := map[string]any{}
		for name, value := range changes {
			behavior[name] = map[string]any{"selectPolicy": value} // nil: the API server's default
		}
		p["spec"] = map[string]any{"behavior": behavior}
	}
	return p, annotations
}

// Sizes in bytes above which a value has no meaning: no driver writes a longer note, and no longer setting is a boolean.
const maxNote, maxSetting, maxOwner = 8 << 10, 512, 1 << 10

// holdMetadata returns what a hold needs of an object's metadata: its controller, and annotations that are cut where they are too long.
func holdMetadata(o metav1.Object) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
	if owner := metav1.GetControllerOf(o); owner != nil && owner.Size() <= maxOwner {
		m.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	for _, key := range []string{NoteAnnotation, pausedAnnotation, pausedReplicasAnnotation, pausedScaleInAnnotation, pausedScaleOutAnnotation} {
		most := maxSetting
		if key == NoteAnnotation {
			most = maxNote
		}
		if value, ok := o.GetAnnotations()[key]; ok {
			metav1.SetMetaDataAnnotation(&m, key, strings.Clone(value[:min(len(value), most+1)]))
		}
	}
	return m
}

// Directions are those in which an autoscaler may change the number of replicas.
type Directions struct{ Up, Down bool }

// Any reports whether it may change the number at all.
func (d Directions) Any() bool { return d.Up || d.Down }

// Beyond reports whether d has a direction that e lacks.
func (d Directions) Beyond(e Directions) bool { return d.Up && !e.Up || d.Down && !e.Down }

// Hold is what an autoscaler is kept from.
type Hold string

// The holds.
const (
	// HoldNone: nothing, it has its user's configuration.
	HoldNone Hold = ""
	// HoldDown: removing replicas.
	HoldDown Hold = "down"
	// HoldAll: adding and removing replicas.
	HoldAll Hold = "all"
)

// Note is the value of NoteAnnotation.
type Note struct {
	// Workload is the workload for whose release the autoscaler is held: a LeaderWorkerSet, or TYPE/NAME.
	Workload string `json:"workload"`
	// Hold is HoldDown or HoldAll.
	Hold Hold `json:"hold"`
	// Bare is true if the HorizontalPodAutoscaler had no behavior.
	Bare bool `json:"bare,omitempty"`
	// User has the user's values of the settings that the hold changes. One that is missing was not set.
	User map[string]string `json:"user,omitempty"`
}

// ReadNote returns the note among an object's annotations, nil if there is none. It refuses what no driver would have written.
func ReadNote(annotations map[string]string) (*Note, error) {
	value, ok := annotations[NoteAnnotation]
	if !ok {
		return nil, nil //nolint:nilnil // no note is a state of its own, not an error
	}
	n := &Note{}
	if err := record.StrictJSON(value, n); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", NoteAnnotation, err)
	}
	if n.Workload == "" {
		return nil, fmt.Errorf("annotation %s: names no workload", NoteAnnotation)
	}
	if n.Hold != HoldDown && n.Hold != HoldAll {
		return nil, fmt.Errorf("annotation %s: %q is no hold", NoteAnnotation, n.Hold)
	}
	for _, name := range []string{scaleUp, scaleDown} {
		if policy, ok := n.User[name]; ok && !slices.Contains(selectPolicies, policy) {
			return nil, fmt.Errorf("annotation %s: %q is no selectPolicy", NoteAnnotation, policy)
		}
	}
	return n, nil
}

// Follow is Release in a handover: the same patch makes the autoscaler scale another workload. A note that can't be read is left
// to the user.
func Follow(a *Autoscaler, workload string) map[string]any {
	p, err := a.Release()
	// Without a hold, too, the autoscaler has to scale the other workload.
	if err != nil || p == nil {
		p = map[string]any{"metadata": map[string]any{}}
	}
	spec, ok := p["spec"].(map[string]any)
	if !ok {
		spec = map[string]any{}
		p["spec"] = spec
	}
	spec["scaleTargetRef"] = map[string]any{"name": workload}
	return p
}

// roleScaler begins the names of [RoleScaler].
const roleScaler = "disaggregatedsetrolescaler/"

// RoleScaler returns how [Autoscaler.Workload] names a DisaggregatedSetRoleScaler, which has the number of groups of a role: by TYPE/NAME,
// as kubectl does.
func RoleScaler(name string) string { return roleScaler + name }

// IsRoleScaler reports whether a name is that of a RoleScaler.
func IsRoleScaler(name string) bool { return strings.HasPrefix(name, roleScaler) }

// workloadName returns the name in a scaleTargetRef if it may refer to a LeaderWorkerSet or to the scaler of a role, else "".
func workloadName(apiVersion, kind, name string) string {
	group, err := schema.ParseGroupVersion(apiVersion)
	switch {
	case err != nil || len(name) > validation.DNS1123SubdomainMaxLength:
	case kind == "LeaderWorkerSet" && (apiVersion == "" || group.Group == lws.GroupVersion.Group):
		return name
	case kind == "DisaggregatedSetRoleScaler" && group.Group == disaggregated.GroupVersion.Group:
		return RoleScaler(name)
	}
	return ""
}
