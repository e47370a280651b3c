// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package server

import "io/fs"

// othersOwn is not known here: files have no owner in the sense of Unix.
func othersOwn(fs.FileInfo) bool { return false }

// othersWrite is not known here either.
func othersWrite(fs.FileInfo) bool { return false }
