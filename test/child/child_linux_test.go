// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package child

import (
	"os/exec"
	"runtime"
	"testing"
)

// A child outlives the thread of whoever had it started.
func TestChildOutlivesThreads(t *testing.T) {
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with this goroutine
		started <- Start(cmd)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	for range 50 { // threads come and go
		done := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(done)
		}()
		<-done
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the child ended with %v", err)
	}
}
