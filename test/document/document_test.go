// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
)

func TestParse(t *testing.T) {
	t.Parallel()
	text := strings.ReplaceAll(`# What happens when …

See [there](b.md#x) and not '[here](c.md)'.

<!-- test: TestOne -->
'''sh
one
two
'''

- in a list:

  <!-- not run: needs a registry -->
  '''bash
  three
  '''

'''sh
four
'''

'''yaml
# not a heading, and [no link](d.md)
'''

'''
no language
'''

## 'lockstep plan': [limits](e.md)

## What happens when …
`, "'", "`")
	want := File{
		Path: "a.md",
		Blocks: []Block{
			{Line: 6, Commands: "one\ntwo\n", Test: "TestOne"},
			{Line: 14, Commands: "  three\n", Reason: "needs a registry"},
			{Line: 18, Commands: "four\n"},
		},
		Unnamed: []int{26},
		Links:   []Link{{3, "b.md#x"}, {30, "e.md"}},
		Anchors: []string{"what-happens-when-", "lockstep-plan-limits", "what-happens-when--1"},
	}
	assert.Empty(t, cmp.Diff(want, parse("a.md", text)), "-want +got")
}
