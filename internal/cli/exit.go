// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// codedError is an error with the exit code it leads to. Errors without one lead to exitError.
type codedError struct {
	code int
	err  error
}

// Error is the cause's text.
func (e *codedError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *codedError) Unwrap() error { return e.err }

// usageErrorf is an error in the command line.
func usageErrorf(format string, args ...any) error {
	return &codedError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// exitCode is what the process ends with.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if coded, ok := errors.AsType[*codedError](err); ok {
		return coded.code
	}
	return exitError
}
