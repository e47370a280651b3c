// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
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

func TestVersionsAreChosen(t *testing.T) {
	for _, test := range []struct {
		name, env  string
		given      Versions
		want, fail string
	}{
		{name: "default", want: "v1.36.3"},
		{name: "environment, minor only", env: "1.35", want: "v1.35.8"},
		{name: "option before environment", env: "1.35", given: Versions{Kubernetes: "v1.34.10"}, want: "v1.34.10"},
		{name: "no such version", env: "v1.3", fail: "LOCKSTEP_TEST_KUBERNETES"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, s := range selectables {
				t.Setenv(s.env, "")
			}
			t.Setenv("LOCKSTEP_TEST_KUBERNETES", test.env)
			got, err := test.given.Resolve()
			if test.fail != "" {
				assert.True(t, err != nil && strings.Contains(err.Error(), test.fail) && strings.Contains(err.Error(), "v1.35.8"),
					"want an error that names %s and the known versions, got %v", test.fail, err)
				return
			}
			assert.True(t, err == nil && got.Kubernetes == test.want && got.LWS == "v0.9.0",
				"got %+v, %v; want Kubernetes %s and LWS v0.9.0", got, err, test.want)
		})
	}
}
