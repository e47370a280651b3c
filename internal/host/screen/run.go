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

// Terminal is where the screen is shown. Keys come from the process's own terminal.
type Terminal struct {
	Out io.Writer
	// Env is the environment that says what the terminal can do: TERM, COLORTERM, NO_COLOR.
	Env []string
}

// Run shows s until somebody leaves or ctx ends, neither of which is an error, and gives the terminal back as it was. feed
// runs meanwhile: it sends news until its context ends, and an error of it ends the screen. choose is called with the
// workload whose Detail is to be sent, whenever that is another one, and must not block.
func Run(
	ctx context.Context, t Terminal, s *Screen, feed func(ctx context.Context, send func(news any)) error, choose func(*pb.WorkloadRef),
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Signals end ctx: the command knows about them. The program's own handler would end the screen as an error.
	program := tea.NewProgram(&shell{screen: s, choose: choose}, tea.WithOutput(t.Out), tea.WithEnvironment(t.Env),
		tea.WithoutSignalHandler(), tea.WithFPS(framesPerSecond))
	fed := make(chan error, 1)
	go func() {
		fed <- feed(ctx, func(news any) { program.Send(news) })
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

// framesPerSecond is gentle to slow lines; changes between two frames are drawn as one.
const framesPerSecond = 20

// shell is what bubbletea sees of a Screen.
type shell struct {
	screen *Screen
	choose func(*pb.WorkloadRef)
	chosen key
}

// Init starts the clock.
func (s *shell) Init() tea.Cmd { return tick() }

// tick comes each second, because ages grow.
func tick() tea.Cmd { return tea.Tick(time.Second, func(now time.Time) tea.Msg { return Tick(now) }) }

// Update translates.
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

// View draws.
func (s *shell) View() tea.View {
	v := tea.NewView(s.screen.View())
	v.AltScreen = true
	return v
}
