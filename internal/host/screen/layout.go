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

// roomy is from how many lines on the list and the detail of one are shown together.
const roomy = 16

// View is the whole screen: Height lines, none wider than Width. Empty before the first Size.
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

// room is how many lines are left between top and footer.
func (s *Screen) room() int { return max(s.height-1-len(s.top()), 0) }

// page is how far a page leads.
func (s *Screen) page() int { return max(s.room()-1, 1) }

// furthest is how far the detail can be scrolled.
func (s *Screen) furthest() int {
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

// top is the title, and what is wrong.
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
			text := fmt.Sprintf("%s lost %s ago, trying again: %s", from, view.Age(s.now.Sub(l.since)), view.OneLine(l.err.Error()))
			lines = append(lines, trouble.Render(s.fit(s.glyphs.failed+" "+text, s.width)))
		}
	}
	return cut(lines, max(s.height-2, 1))
}

// program is what the title begins with, where there is room.
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

// logged is how long a line of the log is shown.
const logged = 30 * time.Second

// footer is the newest line of the log for a while, else the keys.
func (s *Screen) footer() string {
	if s.log.text != "" && s.now.Sub(s.log.at) < logged {
		return s.glyphs.failed + " " + s.log.text
	}
	switch {
	case s.help:
		return faint.Render("esc back  q quit")
	case s.options.Only != nil:
		return faint.Render(s.below() + "j/k scroll  ? keys  q quit")
	case s.open:
		return faint.Render(s.below() + "j/k scroll  esc back  ? keys  q quit")
	default:
		return faint.Render("j/k select  enter open  a all  ? keys  q quit")
	}
}

// below says how much of the detail is further down.
func (s *Screen) below() string {
	if n := s.furthest() - s.scroll; n > 0 {
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
		"  A the revision before the release, B the one it brings, C and on: others",
		fmt.Sprintf("  %s ready   %s exists, not ready   %s to come   %s end of a batch", g.full, g.begun, g.empty, g.mark),
		"  It only looks: nothing here acts on a release.")
}

// listAndDetail is the list, with the selected one's detail below where there is room.
func (s *Screen) listAndDetail(room int) []string {
	keys := s.visible()
	if len(keys) == 0 {
		return cut(s.nothing(), room)
	}
	if s.height < roomy {
		return s.list(keys, room)
	}
	height := min(len(keys)+1, max(room/3, 4))
	lines := s.list(keys, height)
	lines = append(lines, faint.Render(strings.Repeat(s.glyphs.rule, s.width)))
	detail, left := s.detail(s.selected), room-len(lines)
	if len(detail) <= left {
		return append(lines, detail...)
	}
	lines = append(lines, cut(detail, left-1)...)
	return append(lines, faint.Render(fmt.Sprintf("%d more lines: enter", len(detail)-left+1)))
}

// nothing says why the list is empty.
func (s *Screen) nothing() []string {
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
		return []string{"", "  no release is running", fmt.Sprintf("  %d under hold, at rest: a shows them", held)}
	}
}
