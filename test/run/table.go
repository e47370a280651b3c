// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// tableFile has the requirement table.
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

// levels has the names of levels in the table and on the command line.
var levels = map[string]level{"smoke": levelSmoke, "test": levelTest, "test-all": levelAll}

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

var testPattern = regexp.MustCompile("^`([a-z0-9]+)\\.(Test[A-Za-z0-9]*(?:/[A-Za-z0-9=_-]+)*)`$")

// readTable reads the rows of the requirement table: | requirement | `package.Test`, … | level |.
func readTable(file string) ([]requirement, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the requirement table: %w", err)
	}
	_, after, found := strings.Cut(string(content), "\n| requirement | tests | runs in |\n")
	if !found {
		return nil, fmt.Errorf("read the requirement table: %s has no line \"| requirement | tests | runs in |\"", file)
	}
	var table []requirement
	for line := range strings.Lines(after) {
		line = strings.TrimSpace(line)
		if line == "" {
			break
		}
		if strings.HasPrefix(line, "| ---") {
			continue
		}
		row, err := readRow(line)
		if err != nil {
			return nil, fmt.Errorf("read the requirement table in %s: %w", file, err)
		}
		table = append(table, row)
	}
	return table, nil
}

func readRow(line string) (requirement, error) {
	cells := strings.Split(strings.Trim(line, "|"), "|")
	if len(cells) != 3 {
		return requirement{}, fmt.Errorf("row %q has %d cells, want 3", line, len(cells))
	}
	row := requirement{text: strings.TrimSpace(cells[0])}
	var known bool
	if row.level, known = levels[strings.TrimSpace(cells[2])]; !known {
		return requirement{}, fmt.Errorf("row %q: want smoke, test or test-all in the last cell", row.text)
	}
	for cell := range strings.SplitSeq(cells[1], ",") {
		parts := testPattern.FindStringSubmatch(strings.TrimSpace(cell))
		if parts == nil {
			return requirement{}, fmt.Errorf("row %q: %q is not of the form `package.TestName`", row.text, strings.TrimSpace(cell))
		}
		row.tests = append(row.tests, testName{parts[1], parts[2]})
	}
	return row, nil
}
