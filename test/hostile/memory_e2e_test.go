// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package hostile

import (
	"bytes"
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

// memory is a process' memory. Its cgroup is empty where the machine allows none.
type memory struct {
	pid    int
	cgroup string
}

// confine puts a process into a memory cgroup, of version 1 or 2.
func confine(t *testing.T, process *child.Process) *memory {
	t.Helper()
	m := &memory{pid: process.Cmd.Process.Pid}
	dir, limit := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(dir); err != nil {
		dir, limit = "/sys/fs/cgroup", "memory.max"
	}
	dir = filepath.Join(dir, fmt.Sprintf("lockstep-hostile-%d", m.pid))
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = errors.Join(
			os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(memoryLimit)), 0o600),
			os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(m.pid)), 0o600),
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
		return m
	}
	m.cgroup = dir
	return m
}

// peak returns the most memory that the process has had resident so far, in bytes. 0: it has ended.
func (m *memory) peak() (bytesResident int64) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(raw) {
		if _, err := fmt.Sscanf(string(line), "VmHWM: %d kB", &bytesResident); err == nil {
			return bytesResident << 10
		}
	}
	return 0
}

// cpu returns how long the process has run.
func (m *memory) cpu() time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.pid))
	if err != nil {
		return 0
	}
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')'):])
	user, _ := strconv.Atoi(string(fields[12]))
	system, _ := strconv.Atoi(string(fields[13]))
	return time.Duration(user+system) * 10 * time.Millisecond
}
