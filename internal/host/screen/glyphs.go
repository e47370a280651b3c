// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import "strings"

// glyphs are the signs of a terminal. They don't need colour.
type glyphs struct {
	// selected marks the selected row, failed a release that has failed.
	selected, failed string
	// ready and unready surround a group's letter, missing is a group without a leader.
	ready, unready [2]string
	missing        string
	// full, begun and empty are parts of a bar, mark is the end of a batch.
	full, begun, empty, mark string
	bar                      [2]string
	// past, present and future precede a batch.
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

// Unicode reports whether the terminal's encoding is UTF-8. As in POSIX, the first of LC_ALL, LC_CTYPE and LANG that is set
// names it.
func Unicode(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := getenv(name); value != "" {
			encoding := strings.ToLower(strings.ReplaceAll(value, "-", ""))
			return strings.Contains(encoding, "utf8")
		}
	}
	return false
}

// ascii replaces other characters by "?". Escape sequences are ASCII.
func ascii(text string) string {
	return strings.Map(func(r rune) rune {
		if r > '~' {
			return '?'
		}
		return r
	}, text)
}
