// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package hostile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/child"
)

// memoryLimit is that of config/deployment.
const memoryLimit = 256 << 20

// goMemoryLimit is the setting of config/deployment.
const goMemoryLimit = "GOMEMLIMIT=200MiB"

// confine puts a process into a memory cgroup, of version 1 or 2, where the machine allows it.
func confine(t *testing.T, process *child.Process) {
	t.Helper()
	pid := process.Cmd.Process.Pid
	dir, limit := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(dir); err != nil {
		dir, limit = "/sys/fs/cgroup", "memory.max"
	}
	dir = filepath.Join(dir, fmt.Sprintf("lockstep-hostile-%d", pid))
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = errors.Join(
			os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(memoryLimit)), 0o600),
			os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600),
		)
	}
	t.Cleanup(func() {
		<-process.Exited
		for range 50 { // the kernel may still be freeing it
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	if err != nil {
		t.Logf("no memory cgroup, so that the peak is judged afterwards: %v", err)
	}
}
