// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import "slices"

// binding is a command with its keys.
type binding struct {
	names []string
	// shown and does are the help text.
	shown, does string
	do          func(s *Screen)
}

// bindings returns all commands. None changes a release.
func bindings() []binding {
	return []binding{
		{[]string{"down", "j"}, "j, down", "next release, or scroll down", func(s *Screen) { s.move(1) }},
		{[]string{"up", "k"}, "k, up", "previous release, or scroll up", func(s *Screen) { s.move(-1) }},
		{[]string{"pgdown", "space", "ctrl+f"}, "page down", "scroll a page down", func(s *Screen) { s.move(s.page()) }},
		{[]string{"pgup", "ctrl+b"}, "page up", "scroll a page up", func(s *Screen) { s.move(-s.page()) }},
		{[]string{"home", "g"}, "g, home", "go to the top", func(s *Screen) { s.move(-far) }},
		{[]string{"end", "G"}, "G, end", "go to the end", func(s *Screen) { s.move(far) }},
		{[]string{"enter", "right", "l"}, "enter", "show the details", func(s *Screen) { s.showDetail() }},
		{[]string{"esc", "left", "h", "backspace"}, "esc", "back to the list", func(s *Screen) { s.back() }},
		{[]string{"a"}, "a", "show or hide workloads at rest", func(s *Screen) { s.all = !s.all }},
		{[]string{"?"}, "?", "show or hide this help", func(s *Screen) { s.help = !s.help }},
		{[]string{"q", "ctrl+c"}, "q, ctrl+c", "quit; releases continue", func(s *Screen) { s.done = true }},
	}
}

// far is longer than any list.
const far = 1 << 20

func (s *Screen) press(name string) {
	for _, b := range bindings() {
		if slices.Contains(b.names, name) {
			b.do(s)
			return
		}
	}
}

// move selects another release, or scrolls the detail.
func (s *Screen) move(by int) {
	if s.open {
		s.scroll += by
		return
	}
	keys := s.visible()
	if len(keys) == 0 {
		return
	}
	at := slices.Index(keys, s.selected) + by
	s.selected = keys[max(min(at, len(keys)-1), 0)]
}

func (s *Screen) showDetail() {
	if !s.open && len(s.visible()) > 0 {
		s.open, s.scroll = true, 0
	}
}

func (s *Screen) back() {
	switch {
	case s.help:
		s.help = false
	case s.options.Only == nil:
		s.open, s.scroll = false, 0
	}
}
