// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPortsAreExclusive(t *testing.T) {
	var first, second ports
	defer first.release()
	defer second.release()
	a, err := first.take(t.Context(), 50)
	require.NoError(t, err)
	b, err := second.take(t.Context(), 50)
	require.NoError(t, err)
	all := slices.Concat(a, b)
	slices.Sort(all)
	assert.Len(t, slices.Compact(all), 100, "a port was reserved twice")
	if claim, err := claimPort(t.Context(), a[0]); err == nil {
		_ = claim.Close()
		t.Error("a port of another cluster can be claimed")
	}
	first.release()
	claim, err := claimPort(t.Context(), a[0])
	require.NoError(t, err, "a released port cannot be claimed")
	_ = claim.Close()
}

func TestMakeDir(t *testing.T) {
	t.Run("refuses what is not empty", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
		_, _, err := makeDir(dir)
		assert.Error(t, err, "a directory with files was accepted")
	})
	t.Run("sweeps what was abandoned", func(t *testing.T) {
		temporary := t.TempDir()
		abandoned, owned := filepath.Join(temporary, dirPrefix+"1"), filepath.Join(temporary, dirPrefix+"2")
		for _, dir := range []string{abandoned, owned} {
			_, owner, err := makeDir(dir)
			require.NoError(t, err)
			if dir == owned {
				defer func() { _ = owner.Close() }()
			} else {
				_ = owner.Close()
			}
		}
		sweep(temporary, time.Now())
		assert.True(t, exists(abandoned), "it was removed before a day had passed")
		sweep(temporary, time.Now().Add(2*abandonedAfter))
		if exists(abandoned) || !exists(owned) {
			t.Errorf("abandoned: %t, owned: %t; want only the owned one", exists(abandoned), exists(owned))
		}
	})
}
