// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package child starts processes that do not outlive this one, however it ends.
package child

import (
	"fmt"
	"os/exec"
	"runtime"
	"sync"
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
