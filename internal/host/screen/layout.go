// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
)

// splitHeight is the minimum height for both the list and a detail.
const splitHeight = 16

// View returns the screen: Height lines, none wider than Width. It is empty before the first Size.
func (s *Screen) View() string {
	if s.width <= 0 || s.height <= 0 {
		return ""
	}
	lines := s.top()
	room := s.room()
	switch {
	case s.help:
		lines = append(lines, cut(s.keysHelp(), room)...)
	case s.open:
		lines = append(lines, cut(s.detail(s.selected)[s.scroll:], room)...)
	default:
		lines = append(lines, s.listAndDetail(room)...)
	}
	for len(lines) < s.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:s.height-1], s.footer())
	for i, line := range lines {
		lines[i] = s.fit(line, s.width)
	}
	return strings.Join(lines, "\n")
}

// room returns the number of lines between top and footer.
func (s *Screen) room() int { return max(s.height-1-len(s.top()), 0) }

// page returns the number of lines of a page.
func (s *Screen) page() int { return max(s.room()-1, 1) }

// maxScroll returns how far the detail can be scrolled.
func (s *Screen) maxScroll() int {
	if !s.open {
		return 0
	}
	return len(s.detail(s.selected)) - s.room()
}

// fit cuts a line to a width.
func (s *Screen) fit(line string, width int) string {
	if ansi.StringWidth(line) > width {
		line = ansi.Truncate(line, width, s.glyphs.more)
	}
	if !s.options.Unicode {
		line = ascii(line)
	}
	return line
}

func cut(lines []string, n int) []string { return lines[:max(min(len(lines), n), 0)] }

// top returns the title and connection errors.
func (s *Screen) top() []string {
	left, right := s.title(), s.now.Format("15:04:05")
	gap := s.width - ansi.StringWidth(left) - len(right) - 2
	if gap < 0 {
		left = strings.TrimPrefix(left, program+"  ")
		gap = s.width - ansi.StringWidth(left) - len(right) - 2
	}
	if gap < 0 {
		left, right, gap = s.fit(left, max(s.width-2, 0)), "", 0
	}
	lines := []string{title.Render(" " + left + strings.Repeat(" ", gap) + right + " ")}
	for _, from := range []Source{FromDriver, FromCluster} {
		if l, ok := s.lost[from]; ok {
			text := fmt.Sprintf("%s lost %s ago, retrying: %s", from, view.Age(s.now.Sub(l.since)), view.OneLine(l.err.Error()))
			lines = append(lines, view.Alert.Render(s.fit(s.glyphs.failed+" "+text, s.width)))
		}
	}
	return cut(lines, max(s.height-2, 1))
}

// program is the start of the title if there is room.
const program = "lockstep watch"

func (s *Screen) title() string {
	if s.options.Only != nil {
		return program + "  " + keyOf(s.options.Only).String()
	}
	where := "all namespaces"
	if s.options.Namespace != "" {
		where = "namespace " + s.options.Namespace
	}
	running, held := 0, 0
	for _, r := range s.rows {
		if r.gone != "" {
			continue
		}
		held++
		if view.Running(r.context) {
			running++
		}
	}
	return fmt.Sprintf("%s  %s  %d running, %d under hold", program, where, running, held)
}

// logDuration is how long a log line is shown.
const logDuration = 30 * time.Second

// footer returns a recent log line, or else the keys.
func (s *Screen) footer() string {
	if s.log.text != "" && s.now.Sub(s.log.at) < logDuration {
		return s.glyphs.failed + " " + s.log.text
	}
	switch {
	case s.help:
		return view.Faint.Render("esc back  q quit")
	case s.options.Only != nil:
		return view.Faint.Render(s.below() + "j/k scroll  ? keys  q quit")
	case s.open:
		return view.Faint.Render(s.below() + "j/k scroll  esc back  ? keys  q quit")
	default:
		return view.Faint.Render("j/k select  enter open  a all  ? keys  q quit")
	}
}

// below returns how many lines of the detail are below the screen.
func (s *Screen) below() string {
	if n := s.maxScroll() - s.scroll; n > 0 {
		return fmt.Sprintf("%d more  ", n)
	}
	return ""
}

func (s *Screen) keysHelp() []string {
	var lines []string
	for _, b := range bindings() {
		lines = append(lines, fmt.Sprintf("  %-12s %s", b.shown, b.does))
	}
	g := s.glyphs
	return append(lines, "",
		fmt.Sprintf("  %s ready   %s not ready   %s no leader",
			g.ready[0]+"A"+g.ready[1], g.unready[0]+"a"+g.unready[1], g.missing),
		"  A stable revision   B update revision   C and further: others",
		fmt.Sprintf("  %s ready   %s exists, not ready   %s pending   %s end of a batch", g.full, g.begun, g.empty, g.mark),
		"  Read-only: no key changes a release.")
}

// listAndDetail returns the list, and the detail of the selected row if there is room.
func (s *Screen) listAndDetail(room int) []string {
	keys := s.visible()
	if len(keys) == 0 {
		return cut(s.emptyList(), room)
	}
	if s.height < splitHeight {
		return s.list(keys, room)
	}
	height := min(len(keys)+1, max(room/3, 4))
	lines := s.list(keys, height)
	lines = append(lines, view.Faint.Render(strings.Repeat(s.glyphs.rule, s.width)))
	detail, left := s.detail(s.selected), room-len(lines)
	if len(detail) <= left {
		return append(lines, detail...)
	}
	lines = append(lines, cut(detail, left-1)...)
	return append(lines, view.Faint.Render(fmt.Sprintf("%d more lines: press enter", len(detail)-left+1)))
}

// emptyList returns why the list is empty.
func (s *Screen) emptyList() []string {
	held := 0
	for _, r := range s.rows {
		if r.gone == "" {
			held++
		}
	}
	switch {
	case !s.synced:
		return []string{"", "  waiting for the driver"}
	case held == 0:
		return []string{"", "  no workload is under hold here: lockstep adopt NAME"}
	default:
		return []string{"", "  no release is running", fmt.Sprintf("  %d under hold, at rest: press a to show them", held)}
	}
}
