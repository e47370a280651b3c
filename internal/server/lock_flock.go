// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const (
	// lockTimeout is how long another process may look after its socket in the same directory, which takes a moment.
	lockTimeout = 2 * time.Second
	lockPoll    = 5 * time.Millisecond
)

// lockDir lets one process at a time look at a socket in the directory and then make, replace or remove it. The kernel
// lets go of the lock when the process dies, and no file is left behind.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
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
