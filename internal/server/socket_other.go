// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix || aix || solaris

package server

import (
	"context"
	"io/fs"
	"net"
)

// lockDir does nothing where directories can't be locked: of two servers that start concurrently both may then succeed.
func lockDir(context.Context, string) (unlock func(), err error) { return func() {}, nil }

// ownedByOther returns false: files have no Unix owner.
func ownedByOther(fs.FileInfo) bool { return false }

// worldWritable returns false: files have no Unix mode.
func worldWritable(fs.FileInfo) bool { return false }

// withPrivateUmask calls listen.
func withPrivateUmask(listen func() (net.Listener, error)) (net.Listener, error) { return listen() }
