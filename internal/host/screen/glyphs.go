// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import "strings"

// glyphs are what a terminal can draw. Each says the same without colour, and the two sets say the same.
type glyphs struct {
	// selected marks the row of the list that the detail is about, failed one that needs somebody.
	selected, failed string
	// ready and unready surround a group's letter, missing stands for a group of which there is no leader.
	ready, unready [2]string
	missing        string
	// full, begun and empty are parts of a bar, mark is where a batch ends.
	full, begun, empty, mark string
	bar                      [2]string
	// past, present and future stand before a batch.
	past, present, future string
	arrow, more, rule     string
}

var unicodeGlyphs = glyphs{
	selected: "▸", failed: "!",
	ready: [2]string{"■", ""}, unready: [2]string{"□", ""}, missing: "· ",
	full: "█", begun: "▒", empty: "░", mark: "│", bar: [2]string{"", ""},
	past: "✓", present: "▸", future: " ",
	arrow: "→", more: "…", rule: "─",
}

var asciiGlyphs = glyphs{
	selected: ">", failed: "!",
	ready: [2]string{"[", "]"}, unready: [2]string{"(", ")"}, missing: " . ",
	full: "#", begun: "+", empty: "-", mark: "|", bar: [2]string{"[", "]"},
	past: "+", present: ">", future: " ",
	arrow: "->", more: "~", rule: "-",
}

// Unicode says whether a terminal of this environment draws more than ASCII, as POSIX has it: the first of LC_ALL, LC_CTYPE
// and LANG that is set names the encoding.
func Unicode(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := getenv(name); value != "" {
			encoding := strings.ToLower(strings.ReplaceAll(value, "-", ""))
			return strings.Contains(encoding, "utf8")
		}
	}
	return false
}

// ascii replaces what such a terminal can't draw. Escape sequences pass: they are ASCII.
func ascii(text string) string {
	return strings.Map(func(r rune) rune {
		if r > '~' {
			return '?'
		}
		return r
	}, text)
}
