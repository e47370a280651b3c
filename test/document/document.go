// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package document reads the Markdown of the documentation, for tests of its commands and links.
package document

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// File is one document.
type File struct {
	// Path is relative to the repository's root.
	Path string
	// Blocks are its blocks of shell commands, in order.
	Blocks []Block
	// Unnamed are the lines of its blocks without a language.
	Unnamed []int
	// Links are the targets of its links, by line.
	Links []Link
	// Anchors are those of its headings, as GitHub makes them.
	Anchors []string
}

// Block is a fenced block of shell commands. The line above it says what runs it, or why nothing does:
//
//	<!-- test: TestTutorial -->
//	<!-- not run: needs a registry -->
type Block struct {
	Line     int
	Commands string
	// Test is the name of the test that runs it, Reason why none does. Without either it is unmarked.
	Test, Reason string
}

// Link is a link's target.
type Link struct {
	Line   int
	Target string
}

var (
	mark    = regexp.MustCompile(`^<!-- (test|not run): (.+) -->$`)
	fence   = regexp.MustCompile("^ *(```+)([a-z]*)")
	heading = regexp.MustCompile(`^#{1,6} (.+)$`)
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	inline  = regexp.MustCompile("`[^`]*`")
	shells  = []string{"sh", "bash", "shell", "console"}
)

// All reads the documents of the repository.
func All(root string) ([]File, error) {
	var files []File
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".github" || slices.Contains(skipped, d.Name())):
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f, err := Read(root, relative)
		files = append(files, f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the documents: %w", err)
	}
	return files, nil
}

// skipped are directories with documents that are not the project's own.
var skipped = []string{"testdata", "node_modules", "bin", "dist"}

// Read reads one document.
func Read(root, path string) (File, error) {
	raw, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return File{}, err
	}
	return parse(path, string(raw)), nil
}

func parse(path, text string) File {
	f := File{Path: path}
	var block *Block
	fenced, previous := "", ""
	for i, line := range strings.Split(text, "\n") {
		if m := fence.FindStringSubmatch(line); m != nil && (fenced == "" || m[1] == fenced && m[2] == "") {
			if fenced != "" {
				if block != nil {
					f.Blocks, block = append(f.Blocks, *block), nil
				}
				fenced = ""
				continue
			}
			fenced = m[1]
			if m[2] == "" {
				f.Unnamed = append(f.Unnamed, i+1)
			}
			if slices.Contains(shells, m[2]) {
				block = blockBelow(previous, i+1)
			}
			continue
		}
		switch {
		case block != nil:
			block.Commands += line + "\n"
		case fenced == "":
			f.prose(i+1, line)
		}
		previous = line
	}
	return f
}

// blockBelow begins a block of commands below the line with its mark.
func blockBelow(previous string, line int) *Block {
	b := &Block{Line: line}
	switch m := mark.FindStringSubmatch(strings.TrimSpace(previous)); {
	case m == nil:
	case m[1] == "test":
		b.Test = m[2]
	default:
		b.Reason = m[2]
	}
	return b
}

// prose notes the links and the anchor of a line.
func (f *File) prose(number int, line string) {
	if m := heading.FindStringSubmatch(line); m != nil {
		f.Anchors = append(f.Anchors, anchor(m[1], f.Anchors))
	}
	for _, m := range link.FindAllStringSubmatch(inline.ReplaceAllString(line, "`"), -1) {
		f.Links = append(f.Links, Link{number, m[1]})
	}
}

var (
	linkText  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	notAnchor = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
)

// anchor returns the anchor that GitHub gives a heading.
func anchor(title string, taken []string) string {
	title = linkText.ReplaceAllString(title, "$1")
	name := strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
	for unique, n := name, 1; ; n++ {
		if !slices.Contains(taken, unique) {
			return unique
		}
		unique = fmt.Sprintf("%s-%d", name, n)
	}
}
