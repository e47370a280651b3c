// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"charm.land/lipgloss/v2"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Colours are of the terminal's own 16, so that they fit its background, and can be distinguished with red-green colour
// blindness. No information depends on colour: the writer of the command line removes them for NO_COLOR and where there is no
// terminal.
var (
	Alert  = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.BrightRed)
	Active = lipgloss.NewStyle().Foreground(lipgloss.Cyan)
	Good   = lipgloss.NewStyle().Foreground(lipgloss.BrightGreen)
	Other  = lipgloss.NewStyle().Foreground(lipgloss.BrightMagenta)
	Faint  = lipgloss.NewStyle().Faint(true)
)

func severityStyle(s pb.Severity) lipgloss.Style {
	switch s {
	case pb.Severity_SEVERITY_ERROR:
		return Alert
	case pb.Severity_SEVERITY_WARNING:
		return Other
	default:
		return lipgloss.NewStyle()
	}
}

// stateText returns the state of a workload in its colour.
func stateText(c *pb.BatchContext) string {
	return StateStyle(c.GetState()).Render(StateWord(c.GetState()))
}

// StateStyle returns the colour of a state.
func StateStyle(state pb.State) lipgloss.Style {
	switch state {
	case pb.State_STATE_FAILED:
		return Alert
	case pb.State_STATE_READY, pb.State_STATE_COMPLETED:
		return Good
	case pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK:
		return Other
	case pb.State_STATE_PREPARING, pb.State_STATE_UPGRADING, pb.State_STATE_VERIFYING, pb.State_STATE_PROMOTING:
		return Active
	default:
		return lipgloss.NewStyle()
	}
}
