// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/pmezard/go-difflib/difflib"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// messageFields are the fields that are not compared: their words may change although the decision is the same.
var messageFields = []string{"message", "Why"}

// Replay decides again, and returns how the decision differs from the recorded one, as a unified diff, "" if it does not.
func (e Entry) Replay() (diff string, err error) {
	d, refusal := plan.Decide(e.Observation, e.Intent)
	again, err := newEntry(e.Observation, e.Intent, d, refusal)
	if err != nil {
		return "", err
	}
	recorded, err := e.decisionText()
	if err != nil {
		return "", err
	}
	now, err := again.decisionText()
	if err != nil || recorded == now {
		return "", err
	}
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{ //nolint:wrapcheck // it never fails
		FromFile: "recorded", ToFile: "now", A: difflib.SplitLines(recorded), B: difflib.SplitLines(now), Context: 1,
	})
}

// decisionText returns what is compared of an entry, as JSON.
func (e Entry) decisionText() (string, error) {
	raw, err := json.Marshal(e.Decision)
	if err != nil {
		return "", fmt.Errorf("encode decision: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	// float64 would round large integers, and hide a difference.
	d.UseNumber()
	decision := map[string]any{}
	if err := d.Decode(&decision); err != nil {
		return "", fmt.Errorf("read back what was encoded: %w", err)
	}
	dropMessages(decision)
	text, err := json.MarshalIndent(map[string]any{"refused": e.Refusal != "", "decision": decision}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode decision: %w", err)
	}
	return string(text) + "\n", nil
}

// dropMessages removes messages from generic JSON.
func dropMessages(value any) {
	switch v := value.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(key string, _ any) bool { return slices.Contains(messageFields, key) })
		for _, field := range v {
			dropMessages(field)
		}
	case []any:
		for _, item := range v {
			dropMessages(item)
		}
	}
}

// Read calls f for each entry of a recording, with the number of its line, until f returns an error. A line that ends in mid-entry is
// what a driver that was killed left, and is skipped.
func Read(from io.Reader, f func(line int, e Entry) error) error {
	lines := bufio.NewReader(from)
	for line := 1; ; line++ {
		raw, err := lines.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return fmt.Errorf("read line %d: %w", line, err)
		}
		if raw = bytes.TrimSpace(raw); len(raw) > 0 {
			var e Entry
			switch err := json.NewDecoder(bytes.NewReader(raw)).Decode(&e); {
			case errors.Is(err, io.ErrUnexpectedEOF):
				// The beginning of an entry.
			case err != nil:
				return fmt.Errorf("line %d: %w", line, err)
			default:
				if err := f(line, e); err != nil {
					return err
				}
			}
		}
		if last {
			return nil
		}
	}
}
