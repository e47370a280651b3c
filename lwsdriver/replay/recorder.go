// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// DefaultLimit is how many bytes a Recorder writes by default: thousands of decisions.
const DefaultLimit = 64 << 20

// ErrLimit is why a Recorder stopped: it has reached its limit.
var ErrLimit = errors.New("the recording has reached its limit")

// Recorder writes decisions, each on a line. It omits a decision that equals the last one about the workload and was made
// from the same state. Its methods are safe for concurrent use.
type Recorder struct {
	// To is where lines are written.
	To io.Writer
	// Limit is the maximum number of bytes. Zero: DefaultLimit.
	Limit int64
	// Templates keeps pod templates and foreign annotations, which may contain secrets.
	Templates bool

	mu      sync.Mutex
	written int64
	last    map[string]string
	err     error
}

// Record writes one decision. i is nil if the driver continued by itself, refusal is nil if the intent was accepted.
func (r *Recorder) Record(o plan.Observation, i plan.Intent, d plan.Decision, refusal error) {
	if !r.Templates {
		o = redacted(o)
		d.Action = redactedAction(d.Action)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = r.write(o, i, d, refusal)
	}
}

// Err returns why the recording ended early, nil if it did not.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
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
	if i == nil && r.last[o.Key.String()] == same {
		return nil
	}
	r.last[o.Key.String()] = same
	raw, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode decision: %w", err)
	}
	limit := r.Limit
	if limit == 0 {
		limit = DefaultLimit
	}
	if r.written += int64(len(raw)) + 1; r.written > limit {
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
