// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package parent detects that the process that started a plugin has exited.
package parent

import (
	"context"
	"os"
	"time"
)

// poll is about how long a plugin outlives its host at most.
const poll = 250 * time.Millisecond

// Gone returns a channel that is closed once the process is no longer a child of parent, or ctx has ended.
//
// A host that is killed leaves its plugins running, and go-plugin does not end them. The parent's pid is the one signal
// that works for every host, also for hosts that do not use this SDK:
//   - PR_SET_PDEATHSIG fires when the thread that forked ends, not the process, and Go gives threads back.
//   - stdin is what the host had, often /dev/null, which is at EOF from the start.
//   - A pipe of our own needs a host that passes it on.
//
// The pid is polled a few times a second, which costs one system call without I/O. It changes exactly when the parent
// process has exited, whichever process inherits the child, so it also works for pid 1 as the parent (a host in a
// container). A parent that exited before the first poll is not detected here, but by the write of the handshake: its
// pipe has no reader then, and SIGPIPE kills the process. On Windows the parent's pid never changes, so nothing is
// guaranteed there.
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
