// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package examples tests the examples. With the build tag e2e it runs the commands of the README files, as they are, on a real
// control plane.
package examples

import (
	"bytes"
	"path/filepath"
	"testing"

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
		if n := bytes.Count(source, []byte("\n")); n >= limit {
			t.Errorf("%s has %d lines, want fewer than %d", path, n, limit)
		}
	}
}

// npm must use the user's registry, not the one that the lock file was made with.
func TestLockFileNamesNoRegistry(t *testing.T) {
	for _, path := range []string{"host-node/package-lock.json", "../docs/package-lock.json"} {
		lock := files.Read(t, source(path))
		if bytes.Contains(lock, []byte(`"resolved"`)) {
			t.Errorf("%s records download addresses; .npmrc says omit-lockfile-registry-resolved", path)
		}
		if !bytes.Contains(lock, []byte(`"integrity"`)) {
			t.Errorf("%s records no checksums", path)
		}
	}
}
