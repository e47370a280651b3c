// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
			assert.Empty(t, broken(f, l.Target, files), "%s:%d: %s", f.Path, l.Line, l.Target)
		}
	}
	assert.GreaterOrEqual(t, checked, 200, "only %d links were checked", checked)
}

// TestImagesAreShown: a document shows each image.
func TestImagesAreShown(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, f := range documents(t) {
		for _, l := range f.Links {
			shown[filepath.Join(filepath.Dir(f.Path), l.Target)] = true
		}
	}
	images, err := filepath.Glob(filepath.Join(root, "docs", "images", "*"))
	require.True(t, err == nil && len(images) != 0, "%d images, %v", len(images), err)
	for _, image := range images {
		name := filepath.Join("docs", "images", filepath.Base(image))
		assert.True(t, shown[name], "no document shows %s", name)
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
		problem := broken(from, target, files)
		assert.Equal(t, want, problem == "", "%s: %q", target, problem)
	}
}

// broken returns what is wrong with a link's target, or "" if there is nothing.
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

// TestCommandsAreMarked: the line above each block of commands names a test that reads the document, or a reason why none runs it.
func TestCommandsAreMarked(t *testing.T) {
	t.Parallel()
	tests := testFunctions(t)
	checked := 0
	for _, f := range documents(t) {
		for _, line := range f.Unnamed {
			t.Errorf("%s:%d: name the block's language: sh for commands, text for what a program prints", f.Path, line)
		}
		for _, b := range f.Blocks {
			checked++
			assert.Empty(t, unmarked(f.Path, b, tests), "%s:%d", f.Path, b.Line)
		}
	}
	assert.GreaterOrEqual(t, checked, 50, "only %d blocks were checked", checked)
}

// TestMissingMarksAreFound: the test above fails where it should.
func TestMissingMarksAreFound(t *testing.T) {
	t.Parallel()
	tests := map[string][]source{
		"TestTutorial": {{path: "test/commands/commands_e2e_test.go", text: `run("docs/tutorial.md")`}},
		"TestHost":     {{path: "test/examples/run_test.go"}},
	}
	for _, c := range []struct {
		name, path string
		block      document.Block
		want       bool
	}{
		{"test names the document", "docs/tutorial.md", document.Block{Test: "TestTutorial"}, true},
		{"test of the folder", "examples/host-go/README.md", document.Block{Test: "TestHost"}, true},
		{"reason", "docs/guide.md", document.Block{Reason: "needs a gateway"}, true},
		{"no mark", "docs/guide.md", document.Block{}, false},
		{"blank reason", "docs/guide.md", document.Block{Reason: " "}, false},
		{"no such test", "docs/tutorial.md", document.Block{Test: "TestNone"}, false},
		{"test of another document", "docs/guide.md", document.Block{Test: "TestTutorial"}, false},
		{"test of another folder", "README.md", document.Block{Test: "TestHost"}, false},
	} {
		problem := unmarked(c.path, c.block, tests)
		assert.Equal(t, c.want, problem == "", "%s: %q", c.name, problem)
	}
}

// unmarked returns what is wrong with the mark of a block, or "" if there is nothing.
func unmarked(path string, b document.Block, tests map[string][]source) string {
	switch {
	case b.Test == "" && strings.TrimSpace(b.Reason) == "":
		return "write <!-- test: NAME --> or <!-- not run: REASON --> above the commands"
	case b.Test == "":
		return ""
	case len(tests[b.Test]) == 0:
		return "there is no test " + b.Test
	case !slices.ContainsFunc(tests[b.Test], func(s source) bool { return s.reads(path) }):
		return b.Test + " does not read this document"
	}
	return ""
}

// TestFilesAreCreated: a command creates each file that another command of its document reads as a CA or a token.
func TestFilesAreCreated(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`--(?:tls-ca|token-file) ([\w.]+)\b`)
	checked := 0
	for _, f := range documents(t) {
		for _, b := range f.Blocks {
			for _, file := range named.FindAllStringSubmatch(b.Commands, -1) {
				checked++
				assert.Contains(t, b.Commands, "> "+file[1], "%s:%d: no command creates %s", f.Path, b.Line, file[1])
			}
		}
	}
	assert.GreaterOrEqual(t, checked, 2, "only %d files were checked", checked)
}

// TestNamedTestsExist: each test that a document names exists.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	tests := testFunctions(t)
	checked := 0
	for _, f := range documents(t) {
		for line, text := range strings.Split(read(t, filepath.Join(root, f.Path)), "\n") {
			for _, name := range testName.FindAllString(text, -1) {
				checked++
				assert.NotEmpty(t, tests[name], "%s:%d: there is no %s", f.Path, line+1, name)
			}
		}
	}
	assert.GreaterOrEqual(t, checked, 100, "only %d names were checked", checked)
}

// testName is the name of a test in a document.
var testName = regexp.MustCompile(`\bTest[A-Z]\w+`)

// source is a file with tests.
type source struct{ path, text string }

// reads reports whether tests of the file may read a document: they name it, or it is below the folder that theirs is named after.
func (s source) reads(path string) bool {
	return strings.Contains(s.text, `"`+path+`"`) || strings.HasPrefix(path, strings.TrimPrefix(filepath.Dir(s.path), "test/")+"/")
}

// testFunctions returns the files that have a test, by the test's name.
func testFunctions(t *testing.T) map[string][]source {
	t.Helper()
	name := regexp.MustCompile(`(?m)^func (Test\w+)\((?:t \*testing\.T|m \*testing\.M)\)`)
	out := map[string][]source{}
	walk(t, func(path string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		s := source{strings.TrimPrefix(path, root+"/"), read(t, path)}
		for _, m := range name.FindAllStringSubmatch(s.text, -1) {
			out[m[1]] = append(out[m[1]], s)
		}
	})
	return out
}

func documents(t *testing.T) []document.File {
	t.Helper()
	files, err := document.All(root)
	require.NoError(t, err)
	return files
}
