// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(text string, at time.Time) {
		t.Helper()
		require.NoError(t, errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)))
	}
	reads := 0
	load := func() (string, error) {
		reads++
		raw, err := os.ReadFile(path)
		if string(raw) == "half" {
			return "", errors.New("half-written")
		}
		return string(raw), err
	}
	_, err := NewFiles(load, path)
	assert.Error(t, err, "a missing file is no error")
	begin := time.Now()
	write("one", begin)
	f, err := NewFiles(load, path)
	require.NoError(t, err)
	expect := func(want string, wantReads int) {
		t.Helper()
		reads = 0
		got := f.Get()
		assert.True(t, got == want && reads == wantReads, "%q after %d reads, want %q after %d", got, reads, want, wantReads)
	}
	expect("one", 0)
	write("half", begin.Add(time.Second))
	expect("one", 1)
	write("two", begin.Add(2*time.Second))
	expect("two", 1)
	expect("two", 0)
	require.NoError(t, os.Remove(path))
	expect("two", 1)
}
