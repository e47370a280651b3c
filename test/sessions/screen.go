// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"

	"github.com/lockstep-rollouts/lockstep/test/child"
)

// screen is a command on a pseudo-terminal, and what its emulator shows.
type screen struct {
	process  *child.Process
	master   *os.File
	emulator vt10x.Terminal
	// drawn is closed when all output has been drawn.
	drawn chan struct{}
	// changed has a value after output.
	changed chan struct{}
}

// newer matches sequences that are newer than the emulator, which misinterprets them.
var newer = regexp.MustCompile(`\x1b\[[<>=?][0-9;]*u`)

func open(cmd *exec.Cmd, width, height uint16) (*screen, error) {
	master, tty, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	defer func() { _ = tty.Close() }() // the command has its own
	if err := pty.Setsize(master, &pty.Winsize{Cols: width, Rows: height}); err != nil {
		return nil, fmt.Errorf("set the size of the terminal: %w", err)
	}
	cmd.Env = append(cmd.Env, "TERM=xterm-256color", "LANG=C.UTF-8", "LC_ALL=", "LC_CTYPE=", "NO_COLOR=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	process, err := child.Run(cmd)
	if err != nil {
		_ = master.Close()
		return nil, fmt.Errorf("run a command on a terminal: %w", err)
	}
	s := &screen{
		process: process, master: master, emulator: vt10x.New(vt10x.WithSize(int(width), int(height))),
		drawn: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	go s.draw()
	return s, nil
}

// draw renders output until no process has the terminal open.
func (s *screen) draw() {
	defer close(s.drawn)
	buffer := make([]byte, 64<<10)
	for {
		n, err := s.master.Read(buffer)
		if err != nil {
			return
		}
		_, _ = s.emulator.Write(newer.ReplaceAll(buffer[:n], nil))
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// await waits until the screen shows words.
func (s *screen) await(ctx context.Context, words string) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for !strings.Contains(s.emulator.String(), words) {
		select {
		case <-s.changed:
		case <-s.drawn:
			return fmt.Errorf("the command ended without showing %q", words)
		case <-timeout.C:
			return fmt.Errorf("the screen does not show %q", words)
		case <-ctx.Done():
			return fmt.Errorf("await %q: %w", words, context.Cause(ctx))
		}
	}
	return nil
}

// wait waits for the command's end. A command that fails as it should is no error.
func (s *screen) wait(ctx context.Context) error {
	select {
	case <-s.drawn:
		return nil
	case <-time.After(patience):
		return errors.New("the command did not end")
	case <-ctx.Done():
		return fmt.Errorf("wait for the command: %w", context.Cause(ctx))
	}
}

// close ends the command.
func (s *screen) close() {
	s.process.End(syscall.SIGTERM, patience)
	_ = s.master.Close()
	<-s.drawn
}

// ansi returns what the screen shows, with the escape sequences of its colours, without empty lines at the end.
func (s *screen) ansi() string {
	s.emulator.Lock()
	defer s.emulator.Unlock()
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
