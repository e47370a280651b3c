// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package child

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// Memory returns the child's resident memory and its peak in bytes, as the kernel counts them, or 0 once it has exited.
func (p *Process) Memory() (resident, peak int64) {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid))
	for line := range bytes.Lines(raw) {
		var kilobytes int64
		if _, err := fmt.Sscanf(string(line), "VmRSS: %d kB", &kilobytes); err == nil {
			resident = kilobytes << 10
		} else if _, err := fmt.Sscanf(string(line), "VmHWM: %d kB", &kilobytes); err == nil {
			peak = kilobytes << 10
		}
	}
	return resident, peak
}

// CPU returns the processor time that the child has used, or 0 once it has exited.
func (p *Process) CPU() time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid))
	if err != nil {
		return 0
	}
	// From the end of the name, which is in parentheses, utime and stime are the 12th and 13th field, in hundredths of a second.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')'):])
	user, _ := strconv.Atoi(string(fields[12]))
	system, _ := strconv.Atoi(string(fields[13]))
	return time.Duration(user+system) * 10 * time.Millisecond
}
