// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package parent lets a plugin notice that the process which started it is gone.
package parent

import (
	"context"
	"os"
	"time"
)

// poll is how long a plugin outlives its host at most, give or take the shutdown.
const poll = 250 * time.Millisecond

// Gone returns a channel that is closed once the process is no longer a child of parent, or ctx has ended.
//
// Hosts that are killed leave their plugins behind, and go-plugin does nothing about it. The parent's pid is the one
// signal that works for every host, and for hosts that were not built with this SDK:
//   - PR_SET_PDEATHSIG fires when the thread that forked ends, not the process, and Go gives threads back.
//   - stdin is what the host had, often /dev/null, which is at EOF from the start.
//   - A pipe of our own needs a host that passes it on.
//
// The pid is asked for a few times a second, which costs one system call without I/O. It changes exactly when the
// parent process has ended, whoever adopts the child, so pid 1 as the parent (a host in a container) works as well.
// A parent that was gone before the first look is not noticed here, but by the write of the handshake: its pipe has no
// reader then, and SIGPIPE ends the process. On Windows the parent's pid never changes, so there this guarantees nothing.
func Gone(ctx context.Context, parent int) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		ticker := time.NewTicker(poll)
		defer ticker.Stop()
		for os.Getppid() == parent {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	return gone
}
