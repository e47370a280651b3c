// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package exit has the exit codes of the lockstep program, and errors that carry one.
package exit

import (
	"errors"
	"fmt"
)

// Exit codes. Only commands that drive or await a release return Failed, RolledBack and Interrupted, and only preflight, plan and check
// return Found.
const (
	OK          = 0
	Error       = 1
	Usage       = 2
	Failed      = 3
	RolledBack  = 4
	Found       = 5
	Interrupted = 130
)

// Meaning is what an exit code means.
type Meaning struct {
	Code int
	Text string
}

// Meanings returns the table of exit codes, for the help.
func Meanings() []Meaning {
	return []Meaning{
		{OK, "success, also if there is nothing to release"},
		{Error, "an error: the message says what is wrong, where, and what to do"},
		{Usage, "the command line is invalid"},
		{Failed, "the release has failed, for example by its progress deadline or a gate, and is left as it is"},
		{RolledBack, "the release was rolled back instead of promoted"},
		{Found, "preflight has findings of the severity of --fail-on or above, the plan is blocked, or check finds something missing"},
		{Interrupted, "interrupted by Ctrl-C or SIGTERM: the release stays where it is"},
	}
}

// codedError is an error with the exit code it leads to. Errors without one lead to Error.
type codedError struct {
	error

	code int
}

// Unwrap returns the cause.
func (e *codedError) Unwrap() error { return e.error }

// Errorf returns an error that leads to a code.
func Errorf(code int, format string, args ...any) error {
	return &codedError{fmt.Errorf(format, args...), code}
}

// Usagef returns an error in the command line.
func Usagef(format string, args ...any) error {
	return Errorf(Usage, format, args...)
}

// Code returns the exit code that err leads to.
func Code(err error) int {
	if err == nil {
		return OK
	}
	if coded, ok := errors.AsType[*codedError](err); ok {
		return coded.code
	}
	return Error
}
