// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// Difference is one field in which a replayed decision differs.
type Difference struct {
	// Field is the path in the entry, for example "decision.write.Replicas".
	Field string `json:"field"`
	// Recorded and Now are JSON. Empty means that the field is missing.
	Recorded string `json:"recorded,omitempty"`
	Now      string `json:"now,omitempty"`
}

func (d Difference) String() string {
	return fmt.Sprintf("%s: recorded %s, now %s", d.Field, cmp.Or(d.Recorded, "nothing"), cmp.Or(d.Now, "nothing"))
}

// messageFields are the fields that are not compared: their words may change although the decision is the same.
var messageFields = []string{"message", "Why", "refusal"}

// Replay decides again, and returns the differences from the recorded decision. Messages are not compared.
func (e Entry) Replay() ([]Difference, error) {
	d, refusal := plan.Decide(e.Observation, e.Intent)
	again, err := newEntry(e.Observation, e.Intent, d, refusal)
	if err != nil {
		return nil, err
	}
	recorded, err := toMap(e)
	if err != nil {
		return nil, err
	}
	now, err := toMap(again)
	if err != nil {
		return nil, err
	}
	var out []Difference
	collectDifferences(&out, "refused", recorded["refusal"] != nil, now["refusal"] != nil)
	collectDifferences(&out, "decision", recorded["decision"], now["decision"])
	return out, nil
}

// toMap returns an entry as generic JSON.
func toMap(e Entry) (map[string]any, error) {
	raw, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode decision: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	// float64 would round large integers, and hide a difference.
	d.UseNumber()
	out := map[string]any{}
	if err := d.Decode(&out); err != nil {
		return nil, fmt.Errorf("read back what was encoded: %w", err)
	}
	return out, nil
}

// collectDifferences collects the leaves in which two trees differ.
func collectDifferences(into *[]Difference, field string, recorded, now any) {
	if reflect.DeepEqual(recorded, now) {
		return
	}
	was, isMap := recorded.(map[string]any)
	is, areMaps := now.(map[string]any)
	if isMap && areMaps {
		keys := maps.Clone(was)
		maps.Copy(keys, is)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if !slices.Contains(messageFields, key) {
				collectDifferences(into, field+"."+key, was[key], is[key])
			}
		}
		return
	}
	wasList, isList := recorded.([]any)
	list, areLists := now.([]any)
	// In lists of another length the indices do not correspond, so the whole list is reported.
	if isList && areLists && len(wasList) == len(list) {
		for i := range list {
			collectDifferences(into, field+"["+strconv.Itoa(i)+"]", wasList[i], list[i])
		}
		return
	}
	*into = append(*into, Difference{Field: field, Recorded: jsonText(recorded), Now: jsonText(now)})
}

func jsonText(value any) string {
	if value == nil {
		return ""
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(raw)
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
