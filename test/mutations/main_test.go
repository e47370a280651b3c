// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMutations: each mutation is one of the present planner.
func TestMutations(t *testing.T) {
	all := parse(list)
	if len(all) < 100 {
		t.Errorf("the list has %d mutations", len(all))
	}
	for _, m := range all {
		source, err := os.ReadFile(filepath.Join("..", "..", planner, m.file))
		if err != nil {
			t.Errorf("%s: %v", m.what, err)
			continue
		}
		if n := strings.Count(string(source), m.before); n != 1 || m.before == m.after {
			t.Errorf("%s: %s: the old text occurs %d times, or is the new one", m.file, m.what, n)
		}
	}
}
