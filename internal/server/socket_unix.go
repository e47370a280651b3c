// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !aix && !solaris

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	// lockTimeout bounds the wait for another process, which holds the lock for a moment.
	lockTimeout = 2 * time.Second
	lockPoll    = 5 * time.Millisecond
)

// lockDir serializes processes that check and then create, replace or remove a socket in the directory. The kernel releases
// the lock when the process dies, and no lock file is left behind.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		// A blocking lock could not end with ctx.
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock directory %s: %w", dir, err), file.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another process has locked directory %s for %v", dir, lockTimeout), file.Close())
		case <-time.After(lockPoll):
		}
	}
}

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

// withPrivateUmask calls listen while files that this process creates are accessible to its user only.
func withPrivateUmask(listen func() (net.Listener, error)) (net.Listener, error) {
	// The umask is that of the whole process, so it is changed for the bind alone.
	defer syscall.Umask(syscall.Umask(0o077))
	return listen()
}
