// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

type column struct {
	heading string
	cell    func(s *Screen, k key, r *row) string
	style   func(r *row) lipgloss.Style
	// priority decides which columns are left out without room: the lowest first.
	priority int
}

func unstyled(*row) lipgloss.Style { return plain }

func columns() []column {
	return []column{
		{"NAME", func(s *Screen, k key, _ *row) string { return s.name(k) }, func(*row) lipgloss.Style { return strong }, 9},
		{"STATE", func(_ *Screen, _ key, r *row) string { return r.state() },
			func(r *row) lipgloss.Style { return view.StateStyle(r.context.GetState()) }, 8},
		{"BATCH", func(_ *Screen, _ key, r *row) string { return r.unlessGone(batch) }, unstyled, 6},
		{"READY", func(_ *Screen, _ key, r *row) string { return r.unlessGone(ready) }, unstyled, 7},
		{"TRAFFIC", func(_ *Screen, _ key, r *row) string { return r.unlessGone(share) }, unstyled, 5},
		{"BEGAN", func(s *Screen, _ key, r *row) string { return s.ago(r.context) }, unstyled, 4},
		{"MESSAGE", func(_ *Screen, _ key, r *row) string { return r.message() }, unstyled, 3},
	}
}

// name returns the name without the namespace if there is only one.
func (s *Screen) name(k key) string {
	if s.options.Namespace != "" {
		return k.name
	}
	return k.String()
}

func (r *row) state() string {
	if r.gone != "" {
		return "gone"
	}
	return view.StateWord(r.context.GetState())
}

func (r *row) message() string {
	if r.gone != "" {
		return r.gone
	}
	return view.OneLine(r.context.GetMessage())
}

// unlessGone returns "-" for a workload that is gone.
func (r *row) unlessGone(cell func(*pb.BatchContext) string) string {
	if r.gone != "" {
		return "-"
	}
	return cell(r.context)
}

func batch(c *pb.BatchContext) string {
	if !inBatches(c) {
		return "-"
	}
	return view.BatchWord(c)
}

// ready counts the ready groups of the batch, or of a workload without a release.
func ready(c *pb.BatchContext) string {
	if c.GetReleaseId() == "" {
		return fmt.Sprintf("%d/%d", c.GetStableReady(), c.GetReplicas())
	}
	return fmt.Sprintf("%d/%d", c.GetUpdatedReady(), c.GetPlanned())
}

// share returns the update revision's share of requests or of ready groups, and the wanted one.
func share(c *pb.BatchContext) string {
	if !plugin.InFlight(c) {
		return "-"
	}
	text := fmt.Sprintf("%d%%", c.GetTrafficWeight())
	if c.RequestedWeight != nil && c.GetRequestedWeight() != c.GetTrafficWeight() {
		text += fmt.Sprintf(" of %d%%", c.GetRequestedWeight())
	}
	return text
}

func (s *Screen) ago(c *pb.BatchContext) string {
	if c.GetStartTime() == nil {
		return "-"
	}
	return view.Age(s.now.Sub(c.GetStartTime().AsTime()))
}

// list returns a heading and as many rows as fit, with the selected one among them.
func (s *Screen) list(keys []key, height int) []string {
	if height <= 0 {
		return nil
	}
	at := max(slices.Index(keys, s.selected), 0)
	shown := max(height-1, 1)
	first := max(min(at-shown/2, len(keys)-shown), 0)
	some := keys[first:min(first+shown, len(keys))]
	chosen, widths := s.fitColumns(keys)
	heading := "  "
	for i, c := range chosen {
		heading += pad(c.heading, widths[i]) + "  "
	}
	if len(some) < len(keys) {
		heading = fmt.Sprintf("%s(%d of %d)", heading, at+1, len(keys))
	}
	lines := []string{view.Faint.Render(strings.TrimRight(heading, " "))}
	if height == 1 {
		lines = nil
	}
	for _, k := range some {
		r := s.rows[k]
		line := s.marker(k, r) + " "
		for i, c := range chosen {
			cell := pad(s.fit(c.cell(s, k, r), widths[i]), widths[i])
			line += c.style(r).Render(strings.TrimRight(cell, " ")) + strings.Repeat(" ", trailing(cell)+2)
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return lines
}

func (s *Screen) marker(k key, r *row) string {
	switch {
	case k == s.selected:
		return s.glyphs.selected
	case r.gone == "" && r.context.GetState() == pb.State_STATE_FAILED:
		return view.Alert.Render(s.glyphs.failed)
	default:
		return " "
	}
}

// fitColumns returns the columns that fit and their widths. The message gets the rest; a name alone may be cut.
func (s *Screen) fitColumns(keys []key) ([]column, []int) {
	chosen := columns()
	for {
		widths := make([]int, len(chosen))
		total := 2
		for i, c := range chosen {
			widths[i] = len(c.heading)
			for _, k := range keys {
				widths[i] = max(widths[i], ansi.StringWidth(c.cell(s, k, s.rows[k])))
			}
			if c.heading == "MESSAGE" {
				widths[i] = min(widths[i], 20)
			}
			total += widths[i] + 2
		}
		last := len(chosen) - 1
		if total-2 <= s.width || last == 0 {
			if chosen[last].heading == "MESSAGE" || last == 0 {
				widths[last] = max(widths[last]+s.width-total+2, 1)
			}
			return chosen, widths
		}
		least := 0
		for i, c := range chosen {
			if c.priority < chosen[least].priority {
				least = i
			}
		}
		chosen = slices.Delete(chosen, least, least+1)
	}
}

// pad pads text to a width.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-ansi.StringWidth(text), 0))
}

// trailing returns the number of spaces at the end.
func trailing(text string) int { return len(text) - len(strings.TrimRight(text, " ")) }
