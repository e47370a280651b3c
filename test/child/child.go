// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package child starts processes that the kernel kills when this process dies. It does so on Linux only.
//
//	p, err := child.Run(exec.Command("etcd"))
//	defer p.End(syscall.SIGTERM, 10*time.Second)
package child

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// starter is the thread that starts children. The kernel kills a child when the thread that started it ends, and other threads
// of a Go process may end at any time.
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

// Start is cmd.Start for such a child.
func Start(cmd *exec.Cmd) error {
	tie(cmd)
	result := make(chan error)
	starter() <- func() { result <- cmd.Start() }
	if err := <-result; err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return nil
}

// Process is a started child.
type Process struct {
	Cmd *exec.Cmd
	// Exited is closed when the child has exited. Err is its error, and must not be read before.
	Exited <-chan struct{}
	Err    error
}

// Run starts a child and waits for it in the background.
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

// End sends a signal, kills the child if it does not exit within the grace period, and waits for it. It reports whether the child
// exited in time. It may be called more than once.
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
