// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package server

import "io/fs"

// ownedByOther returns false: files have no Unix owner.
func ownedByOther(fs.FileInfo) bool { return false }

// worldWritable returns false: files have no Unix mode.
func worldWritable(fs.FileInfo) bool { return false }
