// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package examples tests the examples. With the build tag e2e it runs the commands of the README files, as they are, on a real
// control plane.
package examples

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
)

// source returns the path of a file of the examples.
func source(path ...string) string {
	return filepath.Join(append([]string{"..", "..", "examples"}, path...)...)
}

// A contract that needs a long host is too hard to use.
func TestHostsStaySmall(t *testing.T) {
	const limit = 150
	for _, path := range []string{"host-go/main.go", "host-node/main.ts"} {
		source := files.Read(t, source(path))
		n := bytes.Count(source, []byte("\n"))
		assert.Less(t, n, limit, "%s has %d lines, want fewer than %d", path, n, limit)
	}
}

// npm must use the user's registry, not the one that the lock file was made with.
func TestLockFileNamesNoRegistry(t *testing.T) {
	for _, path := range []string{"host-node/package-lock.json", "../docs/package-lock.json"} {
		lock := files.Read(t, source(path))
		assert.False(t, bytes.Contains(lock, []byte(`"resolved"`)),
			"%s records download addresses; .npmrc says omit-lockfile-registry-resolved", path)
		assert.True(t, bytes.Contains(lock, []byte(`"integrity"`)), "%s records no checksums", path)
	}
}
