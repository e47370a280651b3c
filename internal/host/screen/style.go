// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"charm.land/lipgloss/v2"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Colours are the terminal's own 16, so that they fit its background, and are told apart by people who don't see red and
// green apart. Nothing is said by colour alone: NO_COLOR takes nothing away.
var (
	plain   = lipgloss.NewStyle()
	strong  = lipgloss.NewStyle().Bold(true)
	faint   = lipgloss.NewStyle().Faint(true)
	title   = lipgloss.NewStyle().Bold(true).Reverse(true)
	trouble = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.BrightRed)
	going   = lipgloss.NewStyle().Foreground(lipgloss.Cyan)
	well    = lipgloss.NewStyle().Foreground(lipgloss.BrightGreen)

	stableColour = lipgloss.NewStyle().Foreground(lipgloss.BrightBlue)
	updateColour = lipgloss.NewStyle().Foreground(lipgloss.BrightYellow)
	otherColour  = lipgloss.NewStyle().Foreground(lipgloss.BrightMagenta)
)

// stateStyle is the colour of a state's word.
func stateStyle(state pb.State) lipgloss.Style {
	switch state {
	case pb.State_STATE_FAILED:
		return trouble
	case pb.State_STATE_READY, pb.State_STATE_COMPLETED:
		return well
	case pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK:
		return otherColour
	case pb.State_STATE_PREPARING, pb.State_STATE_UPGRADING, pb.State_STATE_VERIFYING, pb.State_STATE_PROMOTING:
		return going
	default:
		return plain
	}
}

// letterStyle is the colour of a revision's letter.
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
