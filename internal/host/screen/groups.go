// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// letters are the names of revisions: A is the stable one, B the update, and others follow, sorted.
type letters struct {
	stable, update string
	others         []string
}

func lettersOf(c *pb.BatchContext, groups []*pb.Group) letters {
	l := letters{stable: c.GetStableRevision(), update: c.GetUpdateRevision()}
	others := map[string]bool{}
	for _, g := range groups {
		if r := g.GetRevision(); r != "" && !g.GetUpdated() && r != l.stable {
			others[r] = true
		}
	}
	l.others = slices.Sorted(maps.Keys(others))
	return l
}

// of returns a group's letter. Canary groups may have another hash than the update revision, but are Updated.
func (l letters) of(g *pb.Group) rune {
	switch {
	case g.GetRevision() == "":
		return 0
	case g.GetRevision() == l.stable:
		return 'A'
	case g.GetUpdated():
		return 'B'
	default:
		return other(max(slices.Index(l.others, g.GetRevision()), 0))
	}
}

// other returns the letter of the nth other revision.
func other(n int) rune { return rune("CDEFGHIJKLMNOPQRSTUVWXYZ"[min(n, 'Z'-'C')]) }

// revisions returns the legend of letters and colours.
func (s *Screen) revisions(c *pb.BatchContext, groups []*pb.Group) string {
	l := lettersOf(c, groups)
	text := letterStyle('A').Render("A " + orDash(l.stable))
	if l.update != "" && l.update != l.stable {
		text += " " + s.glyphs.arrow + " " + letterStyle('B').Render("B "+l.update)
	}
	for i, revision := range l.others {
		text += "  " + letterStyle(other(i)).Render(string(other(i))+" "+revision)
	}
	return labelled("Revision", text)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// cells returns rows of cells, one per group, each row with the index of its first group. The letter is the revision; its
// case and the signs around it show whether the group is ready.
func (s *Screen) cells(c *pb.BatchContext, groups []*pb.Group) []string {
	l := lettersOf(c, groups)
	cell := len(s.glyphs.missing) + 1
	if s.options.Unicode {
		cell = 3
	}
	index := len(fmt.Sprint(len(groups))) + 1
	each := max((s.width-label-index)/cell, 1)
	if each > 10 {
		each -= each % 10
	}
	var lines []string
	for _, role := range []pb.GroupRole{pb.GroupRole_GROUP_ROLE_STABLE, pb.GroupRole_GROUP_ROLE_CANARY} {
		name := view.RoleWord(role)
		side := slices.DeleteFunc(slices.Clone(groups), func(g *pb.Group) bool { return g.GetRole() != role })
		for some := range slices.Chunk(side, each) {
			var b strings.Builder
			for _, g := range some {
				b.WriteString(s.cell(l.of(g), g.GetReady()) + " ")
			}
			lines = append(lines, labelled(name, pad(fmt.Sprint(some[0].GetIndex()), index)+strings.TrimRight(b.String(), " ")))
			name = ""
		}
	}
	return lines
}

// cellKey selects a cell's text.
type cellKey struct {
	letter rune
	ready  bool
}

// cell returns the text of a group. It is cached, since there are many groups and few texts.
func (s *Screen) cell(letter rune, ready bool) string {
	if letter == 0 {
		return s.glyphs.missing
	}
	l := cellKey{letter, ready}
	if _, ok := s.cellCache[l]; !ok {
		around, text := s.glyphs.unready, string(unicode.ToLower(letter))
		if ready {
			around, text = s.glyphs.ready, string(letter)
		}
		s.cellCache[l] = letterStyle(letter).Render(around[0] + text + around[1])
	}
	return s.cellCache[l]
}

// bar returns a bar with a part that is done, one that has begun, one that is pending, and marks.
func (s *Screen) bar(width, done, begun, total int, marks []int) string {
	width = max(width-len(s.glyphs.bar[0])-len(s.glyphs.bar[1]), 1)
	at := func(n int) int { return min(max(n, 0), total) * width / max(total, 1) }
	var b strings.Builder
	b.WriteString(s.glyphs.bar[0])
	for i := range width {
		marked := slices.ContainsFunc(marks, func(m int) bool { return m > 0 && m < total && at(m) == i })
		switch {
		case i < at(done):
			b.WriteString(s.glyphs.full)
		case marked:
			b.WriteString(s.glyphs.mark)
		case i < at(begun):
			b.WriteString(s.glyphs.begun)
		default:
			b.WriteString(s.glyphs.empty)
		}
	}
	return b.String() + s.glyphs.bar[1]
}
