// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// Autoscaler is what a release depends on of an object that scales a workload.
type Autoscaler struct {
	metav1.ObjectMeta
	State

	// Behavior is that of a HorizontalPodAutoscaler, nil if it has none.
	Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior
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
	if a.Kind == KindHPA {
		return a.holdHPA(workload, hold)
	}
	return a.holdScaledObject(workload, hold)
}

// Release returns the merge patch that restores the user's configuration and removes the note, nil without a note. Fields that were
// changed since Hold stay.
func (a *Autoscaler) Release() (map[string]any, error) {
	note, err := ReadNote(a.Annotations)
	switch {
	case err != nil || note == nil:
		return nil, err
	case a.Kind == KindHPA:
		return a.releaseHPA(note), nil
	default:
		return a.releaseScaledObject(note), nil
	}
}

// holdMetadata returns what a hold needs of an object's metadata. A hold is in annotations: the note, and those by which KEDA pauses.
func holdMetadata(o metav1.Object) metav1.ObjectMeta {
	annotations := maps.Clone(o.GetAnnotations())
	maps.DeleteFunc(annotations, func(key, _ string) bool { return key != NoteAnnotation && !strings.HasPrefix(key, kedaPrefix) })
	return metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		OwnerReferences: o.GetOwnerReferences(), Annotations: annotations,
	}
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
	// ScaleUp and ScaleDown are its user's selectPolicy. Empty means the API server's default.
	ScaleUp   string `json:"scaleUp,omitempty"`
	ScaleDown string `json:"scaleDown,omitempty"`
	// Paused and PausedScaleIn are its user's values of the ScaledObject's annotations. Nil means that it had none.
	Paused        *string `json:"paused,omitempty"`
	PausedScaleIn *string `json:"pausedScaleIn,omitempty"`
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
	for _, policy := range []string{n.ScaleUp, n.ScaleDown} {
		if !knownPolicy(policy) {
			return nil, fmt.Errorf("annotation %s: %q is no selectPolicy", NoteAnnotation, policy)
		}
	}
	return n, nil
}

func (n Note) encode() (string, error) {
	raw, err := json.Marshal(n)
	if err != nil {
		return "", fmt.Errorf("encode note: %w", err)
	}
	return string(raw), nil
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

// workloadName returns the name in a scaleTargetRef if it refers to a LeaderWorkerSet or to the scaler of a role, else "".
func workloadName(apiVersion, kind, name string) string {
	group, err := schema.ParseGroupVersion(apiVersion)
	switch {
	case err != nil:
	case kind == "LeaderWorkerSet" && (apiVersion == "" || group.Group == lws.GroupVersion.Group):
		return name
	case kind == "DisaggregatedSetRoleScaler" && group.Group == disaggregated.GroupVersion.Group:
		return RoleScaler(name)
	}
	return ""
}
