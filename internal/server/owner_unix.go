// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package server

import (
	"io/fs"
	"os"
	"syscall"
)

// othersOwn says whether another user, who is not root, owns the file. Such a user could replace what is in it.
func othersOwn(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid != 0 && int(stat.Uid) != os.Getuid()
}

// othersWrite says whether everybody may replace what is in the directory. In a sticky one, such as /tmp, they may not.
func othersWrite(info fs.FileInfo) bool {
	const write = 0o002
	return info.Mode()&write != 0 && info.Mode()&fs.ModeSticky == 0
}
