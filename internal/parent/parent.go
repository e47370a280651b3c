// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package parent lets a plugin exit with its host: it watches for the end of the parent process.
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
// Hosts that are killed leave their plugins running, and go-plugin does nothing about it. The parent's pid is the one
// signal that works for every host, including hosts that were not built with this SDK:
//   - PR_SET_PDEATHSIG fires when the thread that forked ends, not the process, and Go ends idle threads.
//   - stdin is inherited from the host, often /dev/null, which is at EOF from the start.
//   - A pipe needs a host that passes it to the plugin.
//
// The pid is polled, one system call without I/O each time. It changes exactly when the parent process has ended, whichever
// process adopts the child, so pid 1 as the parent (a host in a container) works as well. A parent that ended before the
// first poll is not detected here, but by the write of the handshake: its pipe has no reader, and SIGPIPE ends the process.
// On Windows the parent's pid never changes, so there this guarantees nothing.
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
