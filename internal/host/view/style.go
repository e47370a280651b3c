// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"regexp"
	"strings"
	"unicode/utf8"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Style is a colour or weight of text, as the parameters of an SGR escape sequence.
type Style string

// Colours are of the terminal's own 16, so that they fit its background, and can be distinguished with red-green colour
// blindness. No information depends on colour: the writer of the command line removes them for NO_COLOR and where there is no
// terminal.
const (
	plain  Style = ""
	Alert  Style = "1;91"
	Active Style = "36"
	Good   Style = "92"
	Other  Style = "95"
	Faint  Style = "2"
)

// Render returns text in the style.
func (s Style) Render(text string) string {
	if s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + reset
}

const reset = "\x1b[m"

// styles matches what Render adds.
var styles = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Plain returns text without styles.
func Plain(text string) string { return styles.ReplaceAllString(text, "") }

// length returns the number of characters of styled text.
func length(text string) int { return utf8.RuneCountInString(Plain(text)) }

// cut shortens styled text to a number of characters. The last one then is "…".
func cut(text string, to int) string {
	if length(text) <= to {
		return text
	}
	var b strings.Builder
	for room := to - 1; room > 0; {
		if style := styles.FindStringIndex(text); style != nil && style[0] == 0 {
			b.WriteString(text[:style[1]])
			text = text[style[1]:]
			continue
		}
		r, size := utf8.DecodeRuneInString(text)
		b.WriteRune(r)
		text = text[size:]
		room--
	}
	if to > 0 {
		b.WriteString("…")
	}
	return b.String() + reset
}

func severityStyle(s pb.Severity) Style {
	switch s {
	case pb.Severity_SEVERITY_ERROR:
		return Alert
	case pb.Severity_SEVERITY_WARNING:
		return Other
	default:
		return plain
	}
}

// stateText returns the state of a workload in its colour.
func stateText(c *pb.BatchContext) string {
	word := StateWord(c.GetState())
	switch c.GetState() {
	case pb.State_STATE_FAILED:
		return Alert.Render(word)
	case pb.State_STATE_READY, pb.State_STATE_COMPLETED:
		return Good.Render(word)
	case pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK:
		return Other.Render(word)
	case pb.State_STATE_PREPARING, pb.State_STATE_UPGRADING, pb.State_STATE_VERIFYING, pb.State_STATE_PROMOTING:
		return Active.Render(word)
	default:
		return word
	}
}
