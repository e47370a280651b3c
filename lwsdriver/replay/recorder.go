// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// DefaultLimit is how many bytes a Recorder writes by default: thousands of decisions.
const DefaultLimit = 64 << 20

// ErrLimit is why a Recorder stopped: it has reached its limit.
var ErrLimit = errors.New("the recording has reached its limit")

// Open opens a file to which a Recorder appends. If a driver that was killed left an incomplete line, it is ended.
func Open(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the recording: %w", err)
	}
	// Read skips an empty line. If the disk is full, the first entry ends the recording.
	_, _ = file.WriteString("\n")
	return file, nil
}

// Recorder writes decisions, each on a line. It omits a decision that equals the last one about the workload and was made
// from the same state. Its methods are safe for concurrent use.
type Recorder struct {
	// To is where lines are written.
	To io.Writer
	// Limit is the maximum number of bytes. Zero means DefaultLimit.
	Limit int64
	// Ended is called once with why the recording ended early, ErrLimit or an error of To. Nil means that nothing is.
	Ended func(error)

	mu      sync.Mutex
	written int64
	last    map[string]string
	err     error
}

// Record writes one decision. i is nil if the driver continued by itself, refusal is nil if the intent was accepted.
func (r *Recorder) Record(o plan.Observation, i plan.Intent, d plan.Decision, refusal error) {
	o, d.Action = redactObservation(o), redactAction(d.Action)
	r.mu.Lock()
	defer r.mu.Unlock()
	// The first error ends the recording: with a gap it would not show what was decided.
	if r.err != nil {
		return
	}
	if r.err = r.write(o, i, d, refusal); r.err != nil && r.Ended != nil {
		r.Ended(r.err)
	}
}

func (r *Recorder) write(o plan.Observation, i plan.Intent, d plan.Decision, refusal error) error {
	e, err := newEntry(o, i, d, refusal)
	if err != nil {
		return err
	}
	same, err := withoutTimes(e)
	if err != nil {
		return err
	}
	if r.last == nil {
		r.last = map[string]string{}
	}
	// Calls are always recorded. The loop decides the same again after each event.
	if i == nil && r.last[o.Key.String()] == same {
		return nil
	}
	r.last[o.Key.String()] = same
	raw, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode decision: %w", err)
	}
	if r.written += int64(len(raw)) + 1; r.written > cmp.Or(r.Limit, DefaultLimit) {
		return ErrLimit
	}
	if _, err := r.To.Write(append(raw, '\n')); err != nil {
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}

// withoutTimes returns an entry without the time of the observation, and what depends on it.
func withoutTimes(e Entry) (string, error) {
	e.Observation.Now, e.Decision.Recheck = time.Time{}, 0
	raw, err := json.Marshal(e)
	if err != nil {
		return "", fmt.Errorf("encode decision: %w", err)
	}
	return string(raw), nil
}

// redactObservation returns an observation without pod templates, and with digests of foreign annotations. It leads to the same
// decision: the planner only checks whether a template exists, and whether annotations are equal.
func redactObservation(o plan.Observation) plan.Observation {
	if o.Record != nil {
		next := withoutTemplate(*o.Record)
		o.Record = &next
	}
	if observed := o.Traffic; observed != nil {
		o.Traffic = redactedTraffic(observed)
	}
	return o
}

// redactAction redacts a write.
func redactAction(action plan.Action) plan.Action {
	switch a := action.(type) {
	case plan.SetStable:
		a.Record = withoutTemplate(a.Record)
		return a
	case plan.HandOver:
		a.Record = withoutTemplate(a.Record)
		return a
	case plan.RestoreTemplate:
		if a.Record != nil {
			next := withoutTemplate(*a.Record)
			a.Record = &next
		}
		return a
	}
	return action
}

func withoutTemplate(r record.Record) record.Record {
	if r.Release != nil && r.Release.StableTemplate != nil {
		// The driver shares the release, so the copy is changed.
		next := *r.Release
		next.StableTemplate, r.Release = &record.Template{}, &next
	}
	return r
}

func redactedTraffic(o *traffic.Observed) *traffic.Observed {
	out := &traffic.Observed{Setup: o.Setup, World: o.World, Unread: o.Unread}
	w := &out.World
	w.Stable, w.Canary, w.Picker = redactedObject(w.Stable), redactedObject(w.Canary), redactedObject(w.Picker)
	w.StablePool, w.CanaryPool = redactedObject(w.StablePool), redactedObject(w.CanaryPool)
	w.Routes, w.Ingresses = maps.Clone(w.Routes), maps.Clone(w.Ingresses)
	for key, r := range w.Routes {
		w.Routes[key] = redactedObject(r)
	}
	for name, i := range w.Ingresses {
		w.Ingresses[name] = redactedObject(i)
	}
	return out
}

// redactedObject returns a redacted copy of an object, nil if there is none.
func redactedObject[T interface {
	comparable
	metav1.Object
	DeepCopy() T
}](o T) (next T) {
	if o == next {
		return next
	}
	next = o.DeepCopy()
	redactMeta(next)
	return next
}

// redactMeta replaces the values of foreign annotations, and drops the fields of managers, but not their names.
func redactMeta(o metav1.Object) {
	annotations := maps.Clone(o.GetAnnotations())
	for key, value := range annotations {
		if !strings.HasPrefix(key, "lockstep.dev/") && !strings.HasPrefix(key, traffic.IngressPrefix) {
			sum := sha256.Sum256([]byte(value))
			annotations[key] = "sha256:" + hex.EncodeToString(sum[:8])
		}
	}
	o.SetAnnotations(annotations)
	traffic.StripFields(o)
}
