// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminal runs interactive programs on a pseudo-terminal, with an emulator that renders what the program
// writes.
package terminal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/term"
)

// Patience is how long [Terminal.Await] waits for the screen.
const Patience = 60 * time.Second

// Terminal is a program on its own terminal, in a test.
type Terminal struct {
	*Screen
	t testing.TB
}

// Start runs cmd on a terminal of this size until the test ends. Its environment is that of a terminal emulator, overridden
// by cmd.Env.
func Start(t testing.TB, cmd *exec.Cmd, width, height int) *Terminal {
	t.Helper()
	s, err := Open(cmd, width, height)
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("the screen at the end:\n%s", s.Text())
		}
	})
	return &Terminal{Screen: s, t: t}
}

// Await waits until the screen satisfies a condition, and returns what it shows.
func (p *Terminal) Await(what string, condition func(text string) bool) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), Patience)
	defer cancel()
	text, err := p.Screen.Await(ctx, condition)
	require.NoError(p.t, err, "wait for the screen to show %s", what)
	return text
}

// AwaitWords waits until the screen shows all of the words.
func (p *Terminal) AwaitWords(words ...string) string {
	p.t.Helper()
	return p.Await(fmt.Sprintf("%q", words), func(text string) bool {
		for _, w := range words {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	})
}

// Signal sends a signal to the program.
func (p *Terminal) Signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.process.Cmd.Process.Signal(s), "signal")
}

// Resize changes the size of the terminal, as a user does with a window.
func (p *Terminal) Resize(width, height int) {
	p.t.Helper()
	require.NoError(p.t, p.resize(width, height))
}

// Exit waits until the program has ended, and returns its exit code and what the terminal shows afterwards. It fails the test
// if the program did not restore the terminal.
func (p *Terminal) Exit() (code int, text string) {
	p.t.Helper()
	select {
	case <-p.process.Exited:
	case <-time.After(Patience):
		p.t.Fatal("the program did not end in time")
	}
	// Its output is complete once no process has the terminal open.
	modes, err := term.GetState(int(p.tty.Fd()))
	require.NoError(p.t, err, "read the terminal's modes")
	_ = p.tty.Close()
	<-p.read
	assert.Equal(p.t, *p.before, *modes, "the program did not restore the terminal's modes: %+v, were %+v", modes, p.before)
	assert.True(p.t, p.emulator.CursorVisible(), "the program left the cursor hidden")
	exit, failed := errors.AsType[*exec.ExitError](p.process.Err)
	require.False(p.t, p.process.Err != nil && !failed, "wait for the program: %v", p.process.Err)
	if failed {
		return exit.ExitCode(), p.Text()
	}
	return 0, p.Text()
}
