// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
	"golang.org/x/term"

	"github.com/lockstep-rollouts/lockstep/test/child"
)

// Screen is a program on a pseudo-terminal, and what its emulator shows.
type Screen struct {
	process     *child.Process
	master, tty *os.File
	before      *term.State
	// read is closed when no process has the terminal open, and all output is drawn.
	read chan struct{}

	mu       sync.Mutex
	emulator vt10x.Terminal
	raw      bytes.Buffer
	// changed is closed at the next output.
	changed chan struct{}
}

// Open runs cmd on a terminal of this size. Its environment is that of a terminal emulator, overridden by cmd.Env.
func Open(cmd *exec.Cmd, width, height int) (*Screen, error) {
	master, tty, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	s := &Screen{
		master: master, tty: tty, read: make(chan struct{}), changed: make(chan struct{}),
		emulator: vt10x.New(vt10x.WithSize(width, height)),
	}
	if err := s.start(cmd, width, height); err != nil {
		_, _ = tty.Close(), master.Close()
		return nil, err
	}
	go s.draw()
	return s, nil
}

func (s *Screen) start(cmd *exec.Cmd, width, height int) (err error) {
	if err := s.resize(width, height); err != nil {
		return err
	}
	if s.before, err = term.GetState(int(s.tty.Fd())); err != nil {
		return fmt.Errorf("read the terminal's modes: %w", err)
	}
	cmd.Env = append(append(os.Environ(), "TERM=xterm-256color", "LANG=C.UTF-8", "LC_ALL=", "LC_CTYPE=", "NO_COLOR="), cmd.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.tty, s.tty, s.tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if s.process, err = child.Run(cmd); err != nil {
		return fmt.Errorf("run a program on a terminal: %w", err)
	}
	return nil
}

func (s *Screen) resize(width, height int) error {
	s.mu.Lock()
	s.emulator.Resize(width, height)
	s.mu.Unlock()
	if err := pty.Setsize(s.master, &pty.Winsize{Cols: uint16(width), Rows: uint16(height)}); err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	return nil
}

// Close kills the program and closes the terminal.
func (s *Screen) Close() {
	_ = s.process.Cmd.Process.Kill()
	<-s.process.Exited
	_ = s.tty.Close()
	<-s.read
	_ = s.master.Close()
}

// cutShort matches the beginning of a sequence whose end has not been read yet.
var cutShort = regexp.MustCompile(`\x1b(\[[<>=?]?[0-9;]*)?$`)

// draw renders the program's output until no process has the terminal open.
func (s *Screen) draw() {
	defer close(s.read)
	buffer, rest := make([]byte, 64<<10), []byte(nil)
	for {
		n, err := s.master.Read(buffer)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.raw.Write(buffer[:n])
		whole := append(rest, buffer[:n]...)
		rest = slices.Clone(cutShort.Find(whole))
		_, _ = s.emulator.Write(whole[:len(whole)-len(rest)])
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
	}
}

// Await waits until the screen satisfies a condition, and returns what it shows.
func (s *Screen) Await(ctx context.Context, condition func(text string) bool) (string, error) {
	for {
		s.mu.Lock()
		text, changed := s.text(), s.changed
		s.mu.Unlock()
		if condition(text) {
			return text, nil
		}
		select {
		case <-changed:
		case <-s.read:
			return text, errors.New("the program ended before")
		case <-ctx.Done():
			return text, fmt.Errorf("the screen does not show it: %w", context.Cause(ctx))
		}
	}
}

// Wait waits for the program's end, and until the screen shows all of its output. It does not matter how the program ends.
func (s *Screen) Wait(ctx context.Context) error {
	select {
	case <-s.process.Exited:
		_ = s.tty.Close()
		<-s.read
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the program on the terminal: %w", context.Cause(ctx))
	}
}

// Text returns what the screen shows, without trailing spaces.
func (s *Screen) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text()
}

func (s *Screen) text() string {
	lines := strings.Split(s.emulator.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// Raw returns everything that the program has written.
func (s *Screen) Raw() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raw.String()
}

// ANSI returns what [Screen.Text] does, with the escape sequences of the text's colours.
func (s *Screen) ANSI() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	width, height := s.emulator.Size()
	lines := make([]string, height)
	for y := range height {
		var line strings.Builder
		color := vt10x.DefaultFG
		for x := range width {
			cell := s.emulator.Cell(x, y)
			if cell.FG != color {
				color = cell.FG
				line.WriteString(sgr(color))
			}
			line.WriteRune(max(cell.Char, ' '))
		}
		lines[y] = strings.TrimRight(line.String(), " ")
		if color != vt10x.DefaultFG {
			lines[y] += sgr(vt10x.DefaultFG)
		}
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// palette has the 16 colours of a terminal that are readable on a dark background.
var palette = [16]vt10x.Color{
	0x484f58, 0xff7b72, 0x3fb950, 0xd29922, 0x58a6ff, 0xbc8cff, 0x39c5cf, 0xb1bac4,
	0x6e7681, 0xffa198, 0x56d364, 0xe3b341, 0x79c0ff, 0xd2a8ff, 0x56d4dd, 0xffffff,
}

// sgr returns the escape sequence of a foreground colour.
func sgr(c vt10x.Color) string {
	switch {
	case c >= vt10x.DefaultFG:
		return "\x1b[0m"
	case c < 16:
		c = palette[c]
	case c < 256:
		return fmt.Sprintf("\x1b[38;5;%dm", c)
	}
	return fmt.Sprintf("\x1b[38;2;%d;%d;%dm", c>>16&0xff, c>>8&0xff, c&0xff)
}
