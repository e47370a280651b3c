// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package child starts processes that do not outlive this one, however it ends.
package child

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// starter is the thread that starts children. The kernel ties a child's life to the thread that started it, and other
// threads of a Go process may end at any time.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// Start is cmd.Start for a child that the kernel kills when this process ends. It works so on Linux only.
func Start(cmd *exec.Cmd) error {
	tie(cmd)
	result := make(chan error)
	starter() <- func() { result <- cmd.Start() }
	if err := <-result; err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return nil
}

// Process is a child that has been started.
type Process struct {
	Cmd *exec.Cmd
	// Exited is closed when the child has ended. Err is how it did, and must not be read before.
	Exited <-chan struct{}
	Err    error
}

// Run is Start, and waits for the child in the background.
func Run(cmd *exec.Cmd) (*Process, error) {
	if err := Start(cmd); err != nil {
		return nil, err
	}
	exited := make(chan struct{})
	p := &Process{Cmd: cmd, Exited: exited}
	go func() {
		p.Err = cmd.Wait()
		close(exited)
	}()
	return p, nil
}

// End signals the child, kills it when it has not ended within the grace period, and returns when it has ended. It reports whether it ended in
// time. Calling it again does nothing.
func (p *Process) End(signal os.Signal, grace time.Duration) bool {
	_ = p.Cmd.Process.Signal(signal)
	select {
	case <-p.Exited:
		return true
	case <-time.After(grace):
	}
	_ = p.Cmd.Process.Kill()
	<-p.Exited
	return false
}
