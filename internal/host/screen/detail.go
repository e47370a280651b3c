// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// label is the width of the names of lines.
const label = 10

// detail returns the lines about one workload, the most important first.
func (s *Screen) detail(k key) []string {
	r := s.rows[k]
	if r == nil {
		return []string{"", "  waiting for the driver"}
	}
	c := r.context
	lines := []string{s.heading(c)}
	lines = append(lines, s.state(r)...)
	if r.gone == "" {
		lines = append(lines, s.progress(c)...)
		lines = append(lines, s.batches(c)...)
		lines = append(lines, s.traffic(c)...)
		lines = append(lines, s.deadline(c)...)
	}
	lines = append(lines, s.revisions(c, r.groups))
	lines = append(lines, s.cells(c, r.groups)...)
	lines = append(lines, s.unready(r.groups)...)
	return append(lines, s.eventLines(c)...)
}

// labelled returns a line with a name.
func labelled(name, text string) string { return view.Faint.Render(pad(name, label)) + text }

// wrapped returns at most n lines of text with a name.
func (s *Screen) wrapped(name, text string, n int, style interface{ Render(...string) string }) []string {
	width := max(s.width-label, 1)
	all := strings.Split(ansi.Wrap(text, width, ""), "\n")
	if len(all) > n {
		all = append(all[:n-1], s.fit(strings.Join(all[n-1:], " "), width))
	}
	lines := make([]string, len(all))
	for i, line := range all {
		lines[i] = labelled(name, style.Render(strings.TrimRight(line, " ")))
		name = ""
	}
	return lines
}

func (s *Screen) heading(c *pb.BatchContext) string {
	k := keyOf(c.GetWorkload())
	parts := []string{strong.Render(k.String()), fmt.Sprintf("%d x %d pods", c.GetReplicas(), c.GetSize())}
	if c.GetReleaseId() != "" {
		parts = append(parts, view.StyleWord(c.GetStyle()), "began "+s.ago(c)+" ago", view.OneLine(c.GetReleaseId()))
		if c.GetOwner() != "" {
			parts = append(parts, "by "+view.OneLine(c.GetOwner()))
		}
	}
	return strings.Join(parts, "  ")
}

func (s *Screen) state(r *row) []string {
	c := r.context
	if r.gone != "" {
		return s.wrapped("State", r.gone+"; its state was "+view.StateWord(c.GetState()), 3, plain)
	}
	word := view.StateWord(c.GetState())
	if c.GetState() == pb.State_STATE_FAILED {
		word = s.glyphs.failed + " " + word
	}
	lines := []string{labelled("State", view.StateStyle(c.GetState()).Render(word)+" ("+view.OneLine(c.GetReason())+")"+s.ended(r))}
	if message := view.OneLine(c.GetMessage()); message != "" {
		lines = append(lines, s.wrapped("", message, 3, plain)...)
	}
	return lines
}

func (s *Screen) ended(r *row) string {
	if r.ended.IsZero() {
		return ""
	}
	return ", ended " + view.Age(s.now.Sub(r.ended)) + " ago"
}

// progress returns the bar of all groups, with marks at the ends of batches.
func (s *Screen) progress(c *pb.BatchContext) []string {
	if !plugin.InFlight(c) || c.GetReplicas() == 0 {
		return nil
	}
	text := fmt.Sprintf("%d of %d groups ready", c.GetUpdatedReady(), c.GetPlanned())
	var marks []int
	if inBatches(c) {
		if word := view.BatchWord(c); word != "-" {
			text = "batch " + word + ": " + text
		}
		for _, b := range c.GetBatchPlan() {
			marks = append(marks, int(b.GetGroups()))
		}
	}
	done, begun := int(c.GetUpdatedReady()), int(c.GetUpdated())
	return s.barLine("Progress", done, begun, int(c.GetReplicas()), marks, text)
}

// barLine returns a bar with text after it, or below it without room.
func (s *Screen) barLine(name string, done, begun, total int, marks []int, text string) []string {
	room := s.width - label
	bar := func(width int) string { return s.bar(min(width, 40), done, begun, total, marks) }
	if left := room - ansi.StringWidth(text) - 2; left >= 12 {
		return []string{labelled(name, bar(left)+"  "+text)}
	}
	return []string{labelled(name, bar(max(room, 4))), labelled("", text)}
}

// inBatches reports whether the release is in its batches: neither at rest nor finalizing.
func inBatches(c *pb.BatchContext) bool {
	return plugin.InFlight(c) && c.GetState() != pb.State_STATE_PROMOTING && c.GetState() != pb.State_STATE_ROLLING_BACK
}

func (s *Screen) batches(c *pb.BatchContext) []string {
	if !inBatches(c) || len(c.GetBatchPlan()) == 0 {
		return nil
	}
	var words []string
	for i, b := range c.GetBatchPlan() {
		mark, style := s.glyphs.future, view.Faint
		switch at := int(c.GetCurrentBatch()); {
		case c.CurrentBatch != nil && i < at:
			mark, style = s.glyphs.past, plain
		case c.CurrentBatch != nil && i == at:
			mark, style = s.glyphs.present, strong
		}
		words = append(words, style.Render(fmt.Sprintf("%s%s: %d", mark, b.GetTarget(), b.GetGroups())))
	}
	return s.wrapped("Batches", strings.Join(words, "  "), 3, plain)
}

// traffic returns the bar of the share, with a mark at the wanted weight.
func (s *Screen) traffic(c *pb.BatchContext) []string {
	if !plugin.InFlight(c) || c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_UNSPECIFIED {
		return nil
	}
	text := fmt.Sprintf("%d%% of ready groups are new (not routed)", c.GetTrafficWeight())
	var marks []int
	if c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED {
		text = fmt.Sprintf("%d%% of requests", c.GetTrafficWeight())
		if c.RequestedWeight != nil {
			text += fmt.Sprintf(", %d%% wanted", c.GetRequestedWeight())
			marks = []int{int(c.GetRequestedWeight())}
		}
	}
	return s.barLine("Traffic", int(c.GetTrafficWeight()), 0, 100, marks, text)
}

func (s *Screen) deadline(c *pb.BatchContext) []string {
	if c.GetDeadline() == nil {
		return nil
	}
	at := c.GetDeadline().AsTime().In(s.now.Location())
	if left := at.Sub(s.now); left > 0 {
		return []string{labelled("Deadline", fmt.Sprintf("in %s without progress (%s)", view.Age(left), at.Format("15:04:05")))}
	}
	return []string{labelled("Deadline", view.Alert.Render(fmt.Sprintf("passed %s ago (%s)", view.Age(s.now.Sub(at)), at.Format("15:04:05"))))}
}

// maxUnready is the number of unready groups with a line.
const maxUnready = 5

func (s *Screen) unready(groups []*pb.Group) []string {
	var lines []string
	more := 0
	for _, g := range groups {
		switch {
		case g.GetReady():
		case len(lines) == maxUnready:
			more++
		default:
			since := "-"
			if g.GetSince() != nil {
				since = view.Age(s.now.Sub(g.GetSince().AsTime()))
			}
			text := fmt.Sprintf("%s %d", view.RoleWord(g.GetRole()), g.GetIndex())
			why := view.Problem(g)
			if why == "" {
				why = "not ready"
			}
			lines = append(lines, view.Alert.Render(s.glyphs.failed)+" "+pad(text, label)+
				fmt.Sprintf("%d/%d pods  %s  %s", g.GetReadyPods(), g.GetPods(), pad(since, 4), why))
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more not ready", more))
	}
	return lines
}

// eventLines returns the events of the workload and of its canary, the newest first.
func (s *Screen) eventLines(c *pb.BatchContext) []string {
	k := keyOf(c.GetWorkload())
	all := slices.Clone(s.events[k])
	if name := c.GetCanaryWorkload(); name != "" && name != k.name {
		all = append(all, s.events[key{k.namespace, name}]...)
	}
	slices.SortStableFunc(all, newestFirst)
	lines := []string{"", view.Faint.Render("Events")}
	switch {
	case s.options.NoEvents != "":
		return append(lines, "  "+s.options.NoEvents)
	case len(all) == 0:
		return append(lines, "  none")
	}
	width := 0
	for _, e := range all {
		width = max(width, min(len(e.Reason), 24))
	}
	for _, e := range all {
		mark, style, object := " ", plain, ""
		if e.Type == "Warning" {
			mark, style = s.glyphs.failed, view.Alert
		}
		if e.Name != k.name {
			object = e.Name + ": "
		}
		lines = append(lines, pad(view.Age(s.now.Sub(e.At)), 7)+
			style.Render(mark+" "+pad(view.OneLine(e.Reason), width))+"  "+view.OneLine(object+e.Message))
	}
	return lines
}
