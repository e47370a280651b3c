// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package child

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A child outlives the thread that called Start.
func TestChildOutlivesThreads(t *testing.T) {
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with this goroutine
		started <- Start(cmd)
	}()
	require.NoError(t, <-started)
	for range 50 { // threads start and end
		done := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(done)
		}()
		<-done
	}
	require.NoError(t, stdin.Close())
	assert.NoError(t, cmd.Wait(), "the child exited with")
}

func TestEnd(t *testing.T) {
	for _, test := range []struct {
		name, command string
		inTime        bool
	}{
		{"ends on the signal", "echo; read -r _", true},
		{"ignores the signal", "trap '' TERM; echo; read -r _; read -r _", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", test.command)
			if _, err := cmd.StdinPipe(); err != nil { // it stays open
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			p, err := Run(cmd)
			require.NoError(t, err)
			_, err = stdout.Read(make([]byte, 1))
			require.NoError(t, err)
			grace := time.Minute
			if !test.inTime {
				grace = 10 * time.Millisecond
			}
			if got := p.End(syscall.SIGTERM, grace); got != test.inTime || p.Err == nil {
				t.Errorf("in time: %t, %v", got, p.Err)
			}
			p.End(syscall.SIGTERM, grace)
		})
	}
}
