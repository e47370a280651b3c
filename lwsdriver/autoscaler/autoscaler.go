// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// NoteAnnotation on an autoscaler that is held says what its user had.
const NoteAnnotation = "lockstep.dev/held"

// The kinds of autoscalers.
const (
	KindHPA          = "HorizontalPodAutoscaler"
	KindScaledObject = "ScaledObject"
)

// Autoscaler is one object that scales something.
type Autoscaler interface {
	// Workload is the name of the LeaderWorkerSet that it scales. Empty: it scales something else.
	Workload() string
	// Scales says whether it may change the number of replicas, in one direction at least.
	Scales() bool
	// Hold is the merge patch that keeps it from scaling, with a note of what it takes back and for which workload.
	Hold(workload string) (map[string]any, error)
	// Release is the merge patch that gives it back, without the note. Only what is as Hold left it changes.
	Release() (map[string]any, error)
}

var (
	_ Autoscaler = HPA{}
	_ Autoscaler = ScaledObject{}
)

// Note is what the annotation says.
type Note struct {
	// Workload is the LeaderWorkerSet for whose release the autoscaler is held.
	Workload string `json:"workload"`
	// Bare: the HorizontalPodAutoscaler had no behavior.
	Bare bool `json:"bare,omitempty"`
	// ScaleUp and ScaleDown are the selectPolicy that it had. Empty: the API server's default.
	ScaleUp   string `json:"scaleUp,omitempty"`
	ScaleDown string `json:"scaleDown,omitempty"`
	// Paused is the value of the ScaledObject's own annotation. Nil: it had none.
	Paused *string `json:"paused,omitempty"`
}

// ReadNote returns the note among an object's annotations, nil if there is none. It is read strictly: what no driver would
// have written is not acted on.
func ReadNote(annotations map[string]string) (*Note, error) {
	value, ok := annotations[NoteAnnotation]
	if !ok {
		return nil, nil //nolint:nilnil // no note is a state of its own, not an error
	}
	n, d := &Note{}, json.NewDecoder(strings.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(n); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", NoteAnnotation, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("annotation %s: something follows the value", NoteAnnotation)
	}
	if n.Workload == "" {
		return nil, fmt.Errorf("annotation %s: names no workload", NoteAnnotation)
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

// Follow is Release, and has the autoscaler scale another workload from the same request on. A note that can't be read is
// left to a person.
func Follow(a Autoscaler, workload string) map[string]any {
	p, err := a.Release()
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

// workload is the name in a reference to what is scaled, if it is a LeaderWorkerSet.
func workload(apiVersion, kind, name string) string {
	group, err := schema.ParseGroupVersion(apiVersion)
	if err != nil || kind != "LeaderWorkerSet" || apiVersion != "" && group.Group != lws.GroupVersion.Group {
		return ""
	}
	return name
}
