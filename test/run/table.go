// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tableFile has the requirement table, which is generated.
const tableFile = "README.md"

// level is a set of tests. Each level includes the ones before.
type level int

const (
	// levelSmoke tests run on each version of the matrix.
	levelSmoke level = iota
	// levelTest tests run in `make test`, `make test-hosts` and so on.
	levelTest
	// levelAll tests run in `make test-all`.
	levelAll
)

// levels are the names of levels in comments of tests and on the command line.
var levels = map[string]level{"smoke": levelSmoke, "test": levelTest, "test-all": levelAll}

func (l level) String() string { return [...]string{"smoke", "test", "test-all"}[l] }

// requirement is a row of the table, with the tests that prove it.
type requirement struct {
	text  string
	tests []testName
	level level
}

// testName is a test in the table, "argo.TestUndo" or "e2e.TestStylesEnds/partition".
type testName struct {
	pkg, name string
}

// proves matches what the comment of a test says that it proves, each in a paragraph or line of its own:
//
//	Proves: SPEC rule 2, at every moment.                  runs in test-all
//	Proves (test): SPEC rule 2.                            runs in make test and the like
//	Proves (smoke, canary/promote, partition): SPEC rule 1. its subtests do
var proves = regexp.MustCompile(`^Proves(?: \(([^)]*)\))?: (.+)\.$`)

// subtest matches the name of a subtest.
var subtest = regexp.MustCompile(`^[A-Za-z0-9=_-]+(?:/[A-Za-z0-9=_-]+)*$`)

// folder returns the folder of a suite's package, from that of the tests' module.
func folder(pkg string) string {
	if rest, outside := strings.CutPrefix(pkg, "github.com/lockstep-rollouts/lockstep/"); outside {
		return filepath.Join("..", rest)
	}
	return pkg
}

// readTable reads what the tests of all suites prove. module is the folder of the tests' module.
func readTable(module string) ([]requirement, error) {
	var table []requirement
	var read []string
	for _, s := range whole {
		for _, pkg := range s.packages {
			if slices.Contains(read, pkg) {
				continue
			}
			read = append(read, pkg)
			files, err := filepath.Glob(filepath.Join(module, folder(pkg), "*_test.go"))
			if err != nil {
				return nil, fmt.Errorf("list the tests of %s: %w", pkg, err)
			}
			for _, file := range files {
				if table, err = readFile(table, path.Base(pkg), file); err != nil {
					return nil, err
				}
			}
		}
	}
	return table, nil
}

// readFile adds to the table what the tests of a file prove.
func readFile(table []requirement, pkg, file string) ([]requirement, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("read what tests prove: %w", err)
	}
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") {
			continue
		}
		rows, err := readComment(pkg, f.Name.Name, f.Doc.Text())
		if err == nil && len(rows) == 0 && f.Name.Name != "TestMain" && isEndToEnd(parsed) {
			err = fmt.Errorf("the comment of %s does not say what it proves", f.Name.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, row := range rows {
			same := func(have requirement) bool { return have.text == row.text && have.level == row.level }
			if i := slices.IndexFunc(table, same); i >= 0 {
				table[i].tests = append(table[i].tests, row.tests...)
			} else {
				table = append(table, row)
			}
		}
	}
	return table, nil
}

// isEndToEnd reports whether a file has the build constraint of end-to-end tests.
func isEndToEnd(f *ast.File) bool {
	return slices.ContainsFunc(f.Comments, func(c *ast.CommentGroup) bool {
		return slices.ContainsFunc(c.List, func(c *ast.Comment) bool { return c.Text == "//go:build e2e" })
	})
}

// readComment reads what a test proves by its comment.
func readComment(pkg, test, comment string) (rows []requirement, err error) {
	for _, sentence := range sentences(comment) {
		parts := proves.FindStringSubmatch(sentence)
		if parts == nil {
			return nil, fmt.Errorf("%s: %q is not of the form \"Proves (LEVEL, SUBTEST, …): REQUIREMENT.\"", test, sentence)
		}
		row := requirement{text: parts[2], level: levelAll}
		for i, word := range strings.Split(parts[1], ", ") {
			named, known := levels[word]
			switch {
			case i == 0 && (known || word == ""):
				if known {
					row.level = named
				}
			case subtest.MatchString(word):
				row.tests = append(row.tests, testName{pkg, test + "/" + word})
			default:
				return nil, fmt.Errorf("%s: %q is neither smoke, test or test-all, nor the name of a subtest", test, word)
			}
		}
		if row.tests == nil {
			row.tests = []testName{{pkg, test}}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// sentences returns the parts of a comment that begin with "Proves", each on one line.
func sentences(comment string) (found []string) {
	within := false
	for line := range strings.Lines(comment) {
		line = strings.TrimSpace(line)
		switch begins := strings.HasPrefix(line, "Proves"); {
		case begins:
			found, within = append(found, line), true
		case line == "":
			within = false
		case within:
			found[len(found)-1] += " " + line
		}
	}
	return found
}

// markdown returns the table as it is in test/README.md.
func markdown(table []requirement) string {
	var b strings.Builder
	b.WriteString("| requirement | tests | runs in |\n| --- | --- | --- |\n")
	for _, row := range table {
		tests := make([]string, 0, len(row.tests))
		for _, t := range row.tests {
			tests = append(tests, "`"+t.pkg+"."+t.name+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", row.text, strings.Join(tests, ", "), row.level)
	}
	return b.String()
}
