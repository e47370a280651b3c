// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package files reads and writes files in tests, which an error fails.
package files

import (
	"os"
	"testing"
)

// Read is [os.ReadFile].
func Read(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Write is [os.WriteFile] of a file that only its user reads.
func Write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
