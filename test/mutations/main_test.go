// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestMutations: each mutation is one of the present planner.
func TestMutations(t *testing.T) {
	all := parse(list)
	assert.GreaterOrEqual(t, len(all), 100, "the list has %d mutations", len(all))
	for _, m := range all {
		_, err := m.mutate(filepath.Join("..", planner, m.file))
		assert.NoError(t, err, "%s: %s", m.file, m.what)
	}
}
