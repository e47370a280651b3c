// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package examples tests what people copy. What is in README files here is run as it stands, on a real control plane,
// with the build tag e2e.
package examples

import (
	"bytes"
	"os"
	"testing"
)

// A host that does not fit on a few pages would mean that the contract is too hard to drive.
func TestHostsStaySmall(t *testing.T) {
	const limit = 150
	for _, path := range []string{"host-go/main.go", "host-node/main.ts"} {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(source, []byte("\n")); n >= limit {
			t.Errorf("%s has %d lines, want fewer than %d", path, n, limit)
		}
	}
}

// npm must ask the registry that the user has configured, not the one that we happened to use.
func TestLockFileNamesNoRegistry(t *testing.T) {
	lock, err := os.ReadFile("host-node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(lock, []byte(`"resolved"`)) {
		t.Error("package-lock.json records download addresses; .npmrc says omit-lockfile-registry-resolved")
	}
	if !bytes.Contains(lock, []byte(`"integrity"`)) {
		t.Error("package-lock.json records no checksums")
	}
}
