// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package server

import (
	"io/fs"
	"os"
	"syscall"
)

// ownedByOther reports whether another user than root owns the file, and so can replace its content.
func ownedByOther(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid != 0 && int(stat.Uid) != os.Getuid()
}

// worldWritable reports whether any user can replace files in the directory. In a sticky one, such as /tmp, they can't.
func worldWritable(info fs.FileInfo) bool {
	const write = 0o002
	return info.Mode()&write != 0 && info.Mode()&fs.ModeSticky == 0
}
