// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminal runs interactive programs in tests: on a pseudo-terminal, with an emulator that renders what the program
// writes, and with key presses.
package terminal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
	"golang.org/x/term"

	"github.com/lockstep-rollouts/lockstep/test/child"
)

// Patience is how long [Terminal.Await] waits for the screen.
const Patience = 60 * time.Second

// Terminal is a program on its own terminal.
type Terminal struct {
	t            testing.TB
	cmd          *exec.Cmd
	master, tty  *os.File
	before       *term.State
	exited, read chan struct{}
	exit         error

	mu     sync.Mutex
	screen vt10x.Terminal
	raw    bytes.Buffer
	// changed is closed at the next output.
	changed chan struct{}
}

// Start runs cmd on a terminal of this size until the test ends. Its environment is that of a terminal emulator, overridden
// by cmd.Env.
func Start(t testing.TB, cmd *exec.Cmd, width, height int) *Terminal {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatalf("open a pseudo-terminal: %v", err)
	}
	p := &Terminal{
		t: t, cmd: cmd, master: master, tty: tty, exited: make(chan struct{}), read: make(chan struct{}), changed: make(chan struct{}),
		screen: vt10x.New(vt10x.WithSize(width, height)),
	}
	p.Resize(width, height)
	if p.before, err = term.GetState(int(tty.Fd())); err != nil {
		t.Fatalf("read the terminal's modes: %v", err)
	}
	cmd.Env = append(append(os.Environ(), "TERM=xterm-256color", "LANG=C.UTF-8", "LC_ALL=", "LC_CTYPE=", "NO_COLOR="), cmd.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	go p.draw()
	go func() {
		p.exit = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.end)
	return p
}

// end kills the program and closes the terminal.
func (p *Terminal) end() {
	_ = p.cmd.Process.Kill()
	<-p.exited
	if p.t.Failed() {
		p.t.Logf("the screen at the end:\n%s", p.Text())
	}
	_ = p.tty.Close()
	<-p.read
	_ = p.master.Close()
}

var (
	// keyboardProtocol matches sequences that are newer than the emulator, which misinterprets them.
	keyboardProtocol = regexp.MustCompile(`\x1b\[[<>=?][0-9;]*u`)
	// cutShort matches the beginning of a sequence whose end has not been read yet.
	cutShort = regexp.MustCompile(`\x1b(\[[<>=?]?[0-9;]*)?$`)
)

// draw renders the program's output until no process has the terminal open.
func (p *Terminal) draw() {
	defer close(p.read)
	buffer, rest := make([]byte, 64<<10), []byte(nil)
	for {
		n, err := p.master.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.raw.Write(buffer[:n])
		whole := append(rest, buffer[:n]...)
		rest = slices.Clone(cutShort.Find(whole))
		_, _ = p.screen.Write(keyboardProtocol.ReplaceAll(whole[:len(whole)-len(rest)], nil))
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
}

// Text returns what the screen shows, without trailing spaces.
func (p *Terminal) Text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text()
}

func (p *Terminal) text() string {
	lines := strings.Split(p.screen.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// Raw returns everything that the program has written.
func (p *Terminal) Raw() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.raw.String()
}

// OwnScreen reports whether the program uses the alternate screen.
func (p *Terminal) OwnScreen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.screen.Mode()&vt10x.ModeAltScreen != 0
}

// Await waits until the screen satisfies a condition, and returns what it shows.
func (p *Terminal) Await(what string, condition func(text string) bool) string {
	p.t.Helper()
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		text, changed := p.text(), p.changed
		p.mu.Unlock()
		if condition(text) {
			return text
		}
		select {
		case <-changed:
		case <-p.read:
			p.t.Fatalf("the program ended before the screen showed: %s", what)
		case <-timeout.C:
			p.t.Fatalf("timed out waiting for the screen to show: %s", what)
		}
	}
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

// Press types keys.
func (p *Terminal) Press(keys string) {
	p.t.Helper()
	if _, err := p.master.WriteString(keys); err != nil {
		p.t.Fatalf("press %q: %v", keys, err)
	}
}

// Signal sends a signal to the program.
func (p *Terminal) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal: %v", err)
	}
}

// Resize changes the size of the terminal, as a user does with a window.
func (p *Terminal) Resize(width, height int) {
	p.t.Helper()
	p.mu.Lock()
	p.screen.Resize(width, height)
	p.mu.Unlock()
	if err := pty.Setsize(p.master, &pty.Winsize{Cols: uint16(width), Rows: uint16(height)}); err != nil {
		p.t.Fatalf("resize: %v", err)
	}
}

// Exit waits until the program has ended, and returns its exit code and what the terminal shows afterwards. It fails the test
// if the program did not restore the terminal.
func (p *Terminal) Exit() (code int, text string) {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(Patience):
		p.t.Fatal("the program did not end in time")
	}
	// Its output is complete once no process has the terminal open.
	modes, err := term.GetState(int(p.tty.Fd()))
	if err != nil {
		p.t.Fatalf("read the terminal's modes: %v", err)
	}
	_ = p.tty.Close()
	<-p.read
	if *modes != *p.before {
		p.t.Errorf("the program did not restore the terminal's modes: %+v, were %+v", modes, p.before)
	}
	if p.OwnScreen() {
		p.t.Error("the program left the alternate screen on")
	}
	if !p.screen.CursorVisible() {
		p.t.Error("the program left the cursor hidden")
	}
	if on, off := strings.LastIndex(p.Raw(), "\x1b[?2004h"), strings.LastIndex(p.Raw(), "\x1b[?2004l"); on > off {
		p.t.Error("the program left bracketed paste on")
	}
	exit, failed := errors.AsType[*exec.ExitError](p.exit)
	if p.exit != nil && !failed {
		p.t.Fatalf("wait for the program: %v", p.exit)
	}
	if failed {
		return exit.ExitCode(), p.Text()
	}
	return 0, p.Text()
}
