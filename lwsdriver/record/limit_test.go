// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import "testing"

func TestHistoryLimit(t *testing.T) {
	for value, want := range map[string]int{"0": 0, "1": 1, "100": 100, "": -1, "-1": -1, "101": -1, "ten": -1, "1.5": -1} {
		got, err := HistoryLimit(map[string]string{HistoryLimitAnnotation: value})
		if want < 0 && (err == nil || got != DefaultHistoryLimit) || want >= 0 && (err != nil || got != want) {
			t.Errorf("%q: %d, %v", value, got, err)
		}
	}
	if got, err := HistoryLimit(nil); got != DefaultHistoryLimit || err != nil {
		t.Errorf("nothing: %d, %v", got, err)
	}
}
