// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"
)

// TestMutations: each mutation is one of the present planner.
func TestMutations(t *testing.T) {
	all := parse(list)
	if len(all) < 100 {
		t.Errorf("the list has %d mutations", len(all))
	}
	for _, m := range all {
		if _, err := m.mutate(filepath.Join("..", planner, m.file)); err != nil {
			t.Errorf("%s: %s: %v", m.file, m.what, err)
		}
	}
}
