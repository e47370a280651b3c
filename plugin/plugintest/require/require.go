// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package require ends a test at an error, under the name that the function has in testify.
package require

import "testing"

// NoError ends the test if err is not nil.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
