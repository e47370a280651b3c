// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/document"
)

// TestLinks: what a document links to in the repository exists, with its heading.
func TestLinks(t *testing.T) {
	t.Parallel()
	files := documents(t)
	checked := 0
	for _, f := range files {
		for _, l := range f.Links {
			if strings.Contains(l.Target, "://") || strings.HasPrefix(l.Target, "mailto:") {
				continue
			}
			checked++
			if problem := broken(f, l.Target, files); problem != "" {
				t.Errorf("%s:%d: %s: %s", f.Path, l.Line, l.Target, problem)
			}
		}
	}
	if checked < 200 {
		t.Errorf("only %d links were checked", checked)
	}
}

// TestLinksAreFound: the test above fails where it should.
func TestLinksAreFound(t *testing.T) {
	t.Parallel()
	files := documents(t)
	from := files[slices.IndexFunc(files, func(f document.File) bool { return f.Path == "README.md" })]
	for target, want := range map[string]bool{
		"docs/cli.md": true, "docs/none.md": false, "docs/cli.md#exit-codes": true, "docs/cli.md#none": false, "docs": true, "#install": true, "#none": false,
	} {
		if problem := broken(from, target, files); (problem == "") != want {
			t.Errorf("%s: %q", target, problem)
		}
	}
}

// broken returns what is wrong with a link's target. Empty: nothing.
func broken(from document.File, target string, files []document.File) string {
	path, anchor, _ := strings.Cut(target, "#")
	to := from.Path
	if path != "" {
		to = filepath.Join(filepath.Dir(from.Path), path)
		if _, err := os.Stat(filepath.Join(root, to)); err != nil {
			return "it does not exist"
		}
	}
	if anchor == "" {
		return ""
	}
	i := slices.IndexFunc(files, func(f document.File) bool { return f.Path == to })
	if i < 0 {
		return to + " has no headings"
	}
	if !slices.Contains(files[i].Anchors, anchor) {
		return "no such heading"
	}
	return ""
}

func documents(t *testing.T) []document.File {
	t.Helper()
	files, err := document.All(root)
	if err != nil {
		t.Fatal(err)
	}
	return files
}
