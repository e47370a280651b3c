// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd)

package server

import "context"

// lockDir does nothing where directories can't be locked: of two servers that start concurrently both may then succeed.
func lockDir(context.Context, string) (unlock func(), err error) { return func() {}, nil }
