// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command mutations judges the explorer: it takes each limit of the planner out, one after another, and runs the explorer as `make test`
// does. Each mutation of mutations.txt has to be found, or the list says why it is not:
//
//	make mutations ONLY=limits.go
package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const planner = "../lwsdriver/plan"

// list has for each mutation its file and what it takes out, the old lines after "-", the new ones after "+", and a line with the reason if
// the explorer can't find it. What follows the last "-" may be the begin of a line.
//
//go:embed mutations.txt
var list string

type mutation struct{ file, what, before, after, reason string }

func main() {
	only := flag.String("only", "", "only the mutations whose file or description contains this; further arguments are those of go test")
	flag.Parse()
	wrong := 0
	for _, m := range parse(list) {
		if !strings.Contains(m.file+": "+m.what, *only) {
			continue
		}
		began := time.Now()
		rule, states, err := m.run()
		switch {
		case err != nil:
			wrong++
			rule = "ERROR: " + err.Error()
		case rule == "" && m.reason == "":
			wrong++
			rule = "NOT FOUND"
		case rule == "":
			rule = "not found, since " + m.reason
		}
		fmt.Printf("%s: %s | %s | %d states, %s\n", m.file, m.what, rule, states, time.Since(began).Round(time.Second))
	}
	if wrong > 0 {
		fmt.Fprintf(os.Stderr, "%d mutations are not found, or are no mutations of this planner\n", wrong)
		os.Exit(1)
	}
}

func parse(text string) (all []mutation) {
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		head, lines, _ := strings.Cut(block, "\n")
		var m mutation
		var before, after []string
		m.file, m.what, _ = strings.Cut(head, ": ")
		for line := range strings.SplitSeq(lines, "\n") {
			switch rest := line[1:]; line[0] {
			case '-':
				before = append(before, rest)
			case '+':
				after = append(after, rest)
			default:
				m.reason = line
			}
		}
		m.before, m.after = strings.Join(before, "\n"), strings.Join(after, "\n")
		all = append(all, m)
	}
	return all
}

// timeout is enough for an explorer that finds nothing on a busy machine.
const timeout = "1h"

var (
	breach   = regexp.MustCompile(`explore_test\.go:\d+: (.*)`)
	panics   = regexp.MustCompile(`(?m)^panic: .*`)
	timedOut = regexp.MustCompile(`test timed out`)
	visits   = regexp.MustCompile(`: (\d+) states(?: in |: )`)
	sum      = regexp.MustCompile(`^\d+ states with `)
)

// mutate returns the mutated content of the file of the planner.
func (m mutation) mutate(path string) (string, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.before); n != 1 || m.before == m.after {
		return "", fmt.Errorf("the old text occurs %d times, or is the new one", n)
	}
	return strings.Replace(string(source), m.before, m.after, 1), nil
}

// explorer returns a pattern for the names of the tests that visit the states which a file of the planner decides about.
func explorer(file string) string {
	switch file {
	case "roles.go", "units.go", "bounds.go", "shift.go":
		return "^Test(ExploreRoles|WayBack)$"
	case "limits.go", "traffic.go", "canary.go", "handover.go", "intent.go", "native.go", "share.go", "wait.go":
		return "^TestExplore(Roles)?$"
	}
	return "^TestExplore$"
}

// run explores the mutated planner, and returns the rule that was broken first, empty if none was, and how many states were visited.
func (m mutation) run() (rule string, states int, err error) {
	path, err := filepath.Abs(filepath.Join(planner, m.file))
	if err != nil {
		return "", 0, err
	}
	source, err := m.mutate(path)
	if err != nil {
		return "", 0, err
	}
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return "", 0, err
	}
	defer os.RemoveAll(dir)
	mutated, overlay := filepath.Join(dir, m.file), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	err = errors.Join(err, os.WriteFile(mutated, []byte(source), 0o600), os.WriteFile(overlay, replace, 0o600))
	if err != nil {
		return "", 0, err
	}
	args := append([]string{"test", "-C", planner, ".", "-overlay", overlay, "-run", explorer(m.file), "-v", "-failfast", "-vet", "off", "-timeout", timeout}, flag.Args()...)
	out, err := exec.Command("go", args...).CombinedOutput()
	for _, match := range visits.FindAllStringSubmatch(string(out), -1) {
		n, _ := strconv.Atoi(match[1])
		states += n
	}
	if err == nil {
		return "", states, nil
	}
	for _, match := range breach.FindAllStringSubmatch(string(out), -1) {
		if !visits.MatchString(match[0]) && !sum.MatchString(match[1]) {
			return match[1], states, nil
		}
	}
	if text := panics.Find(out); text != nil && !timedOut.Match(text) {
		return string(text), states, nil
	}
	return "", states, fmt.Errorf("%w: %s", err, out)
}
