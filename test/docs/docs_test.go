// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs tests what docs/ says about the code, and the language of both.
package docs

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// TestPathsExist: each path that architecture.md and the glossary name exists.
func TestPathsExist(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile("`((?:lwsdriver|traffic|plugin|proto|internal|cmd|config|test)/[a-zA-Z0-9_./*-]+)`")
	for _, name := range []string{"architecture.md", "internals.md", "glossary.md"} {
		found := named.FindAllStringSubmatch(read(t, filepath.Join(root, "docs", name)), -1)
		for _, m := range found {
			files, err := filepath.Glob(filepath.Join(root, m[1]))
			assert.True(t, err == nil && len(files) != 0, "docs/%s names %s, which does not exist", name, m[1])
		}
		assert.False(t, len(found) == 0 && name == "architecture.md", "docs/%s names no path", name)
	}
}

// TestWords keeps the words of testdata/words.txt out of comments, strings and documents.
func TestWords(t *testing.T) {
	t.Parallel()
	banned := words(t)
	checked := 0
	walk(t, func(path string) {
		for line, text := range texts(t, path) {
			checked++
			if word := banned.FindString(text); word != "" {
				t.Errorf("%s:%d: %q: test/docs/testdata/words.txt has what to write instead", strings.TrimPrefix(path, root+"/"), line, word)
			}
		}
	})
	assert.GreaterOrEqual(t, checked, 1000, "only %d lines were looked at", checked)
}

// TestWordsAreFound: the test above fails where it should.
func TestWordsAreFound(t *testing.T) {
	t.Parallel()
	banned := words(t)
	for text, want := range map[string]bool{
		"Nobody waits for it.":             true,
		"open says whether it is in force": true,
		"reports whether it is in force":   false,
		"the operator decides":             false,
	} {
		assert.Equal(t, want, banned.MatchString(text), "%q: found %t", text, !want)
	}
	src := filepath.Join(t.TempDir(), "x.go")
	require.NoError(t, os.WriteFile(src, []byte("package x\n\n// somebody\nvar nobody = \"whoever\"\n"), 0o600))
	var lines []int
	for line, text := range texts(t, src) {
		if banned.MatchString(text) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	assert.True(t, slices.Equal(lines, []int{3, 4}), "found in lines %v", lines)
}

// words matches each word of testdata/words.txt, as a word and in either case.
func words(t *testing.T) *regexp.Regexp {
	t.Helper()
	var all []string
	for line := range strings.Lines(read(t, "testdata/words.txt")) {
		word, instead, _ := strings.Cut(strings.TrimSpace(line), ": ")
		require.NotEmpty(t, instead, "%q has no word to use instead", word)
		all = append(all, regexp.QuoteMeta(word))
	}
	require.GreaterOrEqual(t, len(all), 10, "there are only %d words", len(all))
	return regexp.MustCompile(`(?i)\b(` + strings.Join(all, "|") + `)\b`)
}

// walk calls f for each file that has comments, messages or prose of the project.
func walk(t *testing.T, f func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() == "bin"):
			return fs.SkipDir
		case strings.HasSuffix(path, "test/docs/docs_test.go"), strings.HasSuffix(path, ".pb.go"):
		case slices.Contains([]string{".go", ".proto", ".md"}, filepath.Ext(path)):
			f(path)
		}
		return nil
	})
	require.NoError(t, err)
}

// quoted is code in a document.
var quoted = regexp.MustCompile("`[^`]*`")

// texts returns the text of a file by line: of Go, comments and strings only.
func texts(t *testing.T, path string) map[int]string {
	t.Helper()
	out := map[int]string{}
	src := read(t, path)
	if filepath.Ext(path) != ".go" {
		for i, line := range strings.Split(src, "\n") {
			out[i+1] = quoted.ReplaceAllString(line, "")
		}
		return out
	}
	fset := token.NewFileSet()
	file := fset.AddFile(path, -1, len(src))
	var s scanner.Scanner
	s.Init(file, []byte(src), nil, scanner.ScanComments)
	for {
		pos, tok, text := s.Scan()
		switch tok {
		case token.EOF:
			return out
		case token.COMMENT, token.STRING:
			for i, line := range strings.Split(text, "\n") {
				out[fset.Position(pos).Line+i] += " " + line
			}
		default:
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(raw)
}

// TestDependabotModules: Dependabot updates every module but those that pin what the tests run on.
func TestDependabotModules(t *testing.T) {
	t.Parallel()
	tracked, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "go.mod", "*/go.mod").Output()
	require.NoError(t, err)
	var modules []string
	for name := range strings.FieldsSeq(string(tracked)) {
		if dir := path.Join("/", path.Dir(name)); !strings.HasPrefix(dir, "/test/cluster/modules/") {
			modules = append(modules, dir)
		}
	}
	want := "directories: [" + strings.Join(modules, ", ") + "]\n"
	assert.True(t, len(modules) >= 5 && strings.Contains(read(t, filepath.Join(root, ".github", "dependabot.yml")), want),
		".github/dependabot.yml lacks %q", want)
}

// task is a line of the Makefile that `make help` prints.
var task = regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `)

// TestContributingHasEveryTask: the table of commands in CONTRIBUTING.md has each task of the Makefile.
func TestContributingHasEveryTask(t *testing.T) {
	t.Parallel()
	contributing := read(t, filepath.Join(root, "CONTRIBUTING.md"))
	tasks := task.FindAllStringSubmatch(read(t, filepath.Join(root, "Makefile")), -1)
	require.GreaterOrEqual(t, len(tasks), 10, "the Makefile has only %d tasks", len(tasks))
	for _, match := range tasks {
		row := regexp.MustCompile("(?m)^\\| `make " + match[1] + "[` ]")
		name := match[1]
		assert.False(t, name != "help" && !row.MatchString(contributing), "the table in CONTRIBUTING.md lacks make %s", name)
	}
}
