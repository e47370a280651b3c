// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/child"
)

// process is one `lockstep`.
type process struct {
	*child.Process
	stderr *tail
}

// spawn starts the measured program.
func (b *bench) spawn(args ...string) (*process, error) {
	cmd, stderr := exec.Command(b.binary, args...), &tail{}
	// The garbage collector's own trace is the only way to learn the live heap of another process exactly.
	cmd.Env = append(os.Environ(), "GODEBUG=gctrace=1")
	cmd.Stderr = stderr
	p, err := child.Run(cmd)
	return &process{p, stderr}, err
}

// stop stops the process and waits for it. Calling it again has no effect.
func (p *process) stop() { p.End(syscall.SIGTERM, 10*time.Second) }

// memory is that of a process in MB, as the kernel counts it: resident, its peak.
type memory struct{ resident, peak float64 }

func (p *process) memory() (memory, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid))
	if err != nil {
		return memory{}, fmt.Errorf("read memory of lockstep: %w", err)
	}
	of := func(key string) float64 {
		match := regexp.MustCompile(`(?m)^` + key + `:\s+(\d+) kB$`).FindSubmatch(raw)
		if match == nil {
			return 0
		}
		kb, _ := strconv.ParseFloat(string(match[1]), 64)
		return kb * 1024 / mb
	}
	return memory{of("VmRSS"), of("VmHWM")}, nil
}

// busy returns the CPU time of the process.
func (p *process) busy() (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read CPU time of lockstep: %w", err)
	}
	// The fields after the name, which is in parentheses: utime and stime are the 12th and 13th, in hundredths of a second.
	_, rest, _ := bytes.Cut(raw, []byte(") "))
	fields := bytes.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("read CPU time of lockstep: unexpected %q", raw)
	}
	user, _ := strconv.ParseInt(string(fields[11]), 10, 64)
	system, _ := strconv.ParseInt(string(fields[12]), 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}

// gcLine is one collection: its number and the heap before, after and live, in MB.
var gcLine = regexp.MustCompile(`(?m)^gc (\d+) @.* (\d+)->(\d+)->(\d+) MB`)

// collections returns the number of garbage collections, and the live heap of the last one, in bytes.
func (p *process) collections() (n int, live int64) {
	all := gcLine.FindAllStringSubmatch(p.stderr.String(), -1)
	if len(all) == 0 {
		return 0, 0
	}
	last := all[len(all)-1]
	n, _ = strconv.Atoi(last[1])
	mb, _ := strconv.ParseInt(last[4], 10, 64)
	return n, mb << 20
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if n := t.buf.Len() - tailSize; n > 0 {
		t.buf.Next(n)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
