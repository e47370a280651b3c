// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Terminal is the screen's terminal. Keys come from the process's own one.
type Terminal struct {
	Out io.Writer
	// Env describes the terminal: TERM, COLORTERM, NO_COLOR.
	Env []string
}

// Run shows s until the user quits or ctx ends, neither of which is an error, and restores the terminal. Meanwhile feed sends
// messages until its context ends; its error ends Run. Run calls choose, which must not block, with each workload that the
// user selects: feed then sends its Detail.
func Run(
	ctx context.Context, t Terminal, s *Screen, feed func(ctx context.Context, send func(message any)) error, choose func(*pb.WorkloadRef),
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Signals end ctx. bubbletea's own handler would return an error.
	program := tea.NewProgram(&shell{screen: s, choose: choose}, tea.WithOutput(t.Out), tea.WithEnvironment(t.Env),
		tea.WithoutSignalHandler(), tea.WithFPS(framesPerSecond))
	fed := make(chan error, 1)
	go func() {
		fed <- feed(ctx, func(message any) { program.Send(message) })
		program.Quit()
	}()
	context.AfterFunc(ctx, program.Quit)
	_, err := program.Run()
	cancel()
	if errFeed := <-fed; errFeed != nil {
		return errFeed
	}
	if err != nil && !errors.Is(err, tea.ErrProgramKilled) {
		return fmt.Errorf("show the screen: %w", err)
	}
	return nil
}

// framesPerSecond is low for slow connections; changes between two frames are drawn as one.
const framesPerSecond = 20

// shell adapts a Screen to bubbletea.
type shell struct {
	screen *Screen
	choose func(*pb.WorkloadRef)
	chosen key
}

// Init starts the clock.
func (s *shell) Init() tea.Cmd { return tick() }

// tick sends the time each second, since the screen has ages.
func tick() tea.Cmd { return tea.Tick(time.Second, func(now time.Time) tea.Msg { return Tick(now) }) }

// Update forwards bubbletea's messages to the screen.
func (s *shell) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	var next tea.Cmd
	switch m := message.(type) {
	case tea.WindowSizeMsg:
		s.screen.Update(Size{m.Width, m.Height})
	case tea.KeyPressMsg:
		if m.String() == "ctrl+z" {
			return s, tea.Suspend
		}
		s.screen.Update(Key(m.String()))
	case Tick:
		s.screen.Update(m)
		next = tick()
	default:
		s.screen.Update(m)
	}
	if s.screen.Done() {
		return s, tea.Quit
	}
	if ref := s.screen.Selected(); ref != nil && keyOf(ref) != s.chosen {
		s.chosen = keyOf(ref)
		s.choose(ref)
	}
	return s, next
}

// View returns the screen's view.
func (s *shell) View() tea.View {
	v := tea.NewView(s.screen.View())
	v.AltScreen = true
	return v
}
