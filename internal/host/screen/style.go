// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"charm.land/lipgloss/v2"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Colours are of the terminal's own 16, so that they fit its background, and can be distinguished with red-green colour
// blindness. No information depends on colour.
var (
	plain  = lipgloss.NewStyle()
	strong = lipgloss.NewStyle().Bold(true)
	faint  = lipgloss.NewStyle().Faint(true)
	title  = lipgloss.NewStyle().Bold(true).Reverse(true)
	alert  = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.BrightRed)
	active = lipgloss.NewStyle().Foreground(lipgloss.Cyan)
	good   = lipgloss.NewStyle().Foreground(lipgloss.BrightGreen)

	stableColour = lipgloss.NewStyle().Foreground(lipgloss.BrightBlue)
	updateColour = lipgloss.NewStyle().Foreground(lipgloss.BrightYellow)
	otherColour  = lipgloss.NewStyle().Foreground(lipgloss.BrightMagenta)
)

// stateStyle returns the colour of a state.
func stateStyle(state pb.State) lipgloss.Style {
	switch state {
	case pb.State_STATE_FAILED:
		return alert
	case pb.State_STATE_READY, pb.State_STATE_COMPLETED:
		return good
	case pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK:
		return otherColour
	case pb.State_STATE_PREPARING, pb.State_STATE_UPGRADING, pb.State_STATE_VERIFYING, pb.State_STATE_PROMOTING:
		return active
	default:
		return plain
	}
}

// letterStyle returns the colour of a revision's letter.
func letterStyle(letter rune) lipgloss.Style {
	switch letter {
	case 'A':
		return stableColour
	case 'B':
		return updateColour
	default:
		return otherColour
	}
}
