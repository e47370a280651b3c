// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"unicode/utf8"
)

// Shorten returns s as valid UTF-8 of at most limit bytes, with "…" at its end if it was longer. Termination messages may be
// anything, and protobuf refuses invalid text.
func Shorten(s string, limit int) string {
	const more = "…"
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	end := limit - len(more)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + more
}
