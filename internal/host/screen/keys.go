// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import "slices"

// binding is what some keys do.
type binding struct {
	names []string
	// shown is how the keys are called in the help.
	shown, does string
	do          func(s *Screen)
}

// bindings are all there are. None of them acts on a release.
func bindings() []binding {
	return []binding{
		{[]string{"down", "j"}, "j, down", "the next release, or down", func(s *Screen) { s.move(1) }},
		{[]string{"up", "k"}, "k, up", "the one before, or up", func(s *Screen) { s.move(-1) }},
		{[]string{"pgdown", "space", "ctrl+f"}, "page down", "a page down", func(s *Screen) { s.move(s.page()) }},
		{[]string{"pgup", "ctrl+b"}, "page up", "a page up", func(s *Screen) { s.move(-s.page()) }},
		{[]string{"home", "g"}, "g, home", "to the top", func(s *Screen) { s.move(-far) }},
		{[]string{"end", "G"}, "G, end", "to the end", func(s *Screen) { s.move(far) }},
		{[]string{"enter", "right", "l"}, "enter", "everything about it", func(s *Screen) { s.enter() }},
		{[]string{"esc", "left", "h", "backspace"}, "esc", "back to the list", func(s *Screen) { s.leave() }},
		{[]string{"a"}, "a", "workloads at rest too, or not", func(s *Screen) { s.all = !s.all }},
		{[]string{"?"}, "?", "this help, or not", func(s *Screen) { s.help = !s.help }},
		{[]string{"q", "ctrl+c"}, "q, ctrl+c", "leave; releases go on", func(s *Screen) { s.done = true }},
	}
}

// far is beyond every list.
const far = 1 << 20

func (s *Screen) press(name string) {
	for _, b := range bindings() {
		if slices.Contains(b.names, name) {
			b.do(s)
			return
		}
	}
}

// move goes through the list, or through the detail where that is all there is.
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

func (s *Screen) enter() {
	if !s.open && len(s.visible()) > 0 {
		s.open, s.scroll = true, 0
	}
}

func (s *Screen) leave() {
	switch {
	case s.help:
		s.help = false
	case s.options.Only == nil:
		s.open, s.scroll = false, 0
	}
}
