// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"charm.land/lipgloss/v2"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
)

var (
	plain  = lipgloss.NewStyle()
	strong = lipgloss.NewStyle().Bold(true)
	title  = lipgloss.NewStyle().Bold(true).Reverse(true)

	stableColour = lipgloss.NewStyle().Foreground(lipgloss.BrightBlue)
	updateColour = lipgloss.NewStyle().Foreground(lipgloss.BrightYellow)
)

// letterStyle returns the colour of a revision's letter.
func letterStyle(letter rune) lipgloss.Style {
	switch letter {
	case 'A':
		return stableColour
	case 'B':
		return updateColour
	default:
		return view.Other
	}
}
