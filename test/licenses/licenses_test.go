// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package licenses checks the licenses of the modules that the binary contains, and the header of the project's own sources.
package licenses

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// allowed are the licenses that a module may have, by words of their text. A text that matches none is disallowed.
var allowed = map[string]*regexp.Regexp{
	"Apache-2.0": regexp.MustCompile(`Apache License,? Version 2\.0`),
	"MIT":        regexp.MustCompile(`Permission is hereby granted, free of charge, to any person obtaining a copy`),
	"BSD":        regexp.MustCompile(`Redistribution and use in source and binary forms, with or without modification, are permitted`),
	"ISC":        regexp.MustCompile(`Permission to use, copy, modify, and(/or)? distribute this software for any purpose`),
	"MPL-2.0":    regexp.MustCompile(`Mozilla Public License, version 2\.0`),
}

// disallowed are words of licenses that must not be in a text, whatever else it has.
var disallowed = regexp.MustCompile(`GNU (AFFERO |LESSER )?GENERAL PUBLIC LICENSE|Business Source License|Server Side Public License|Commons Clause`)

// classify returns the license of a text, or "".
func classify(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if disallowed.MatchString(text) {
		return ""
	}
	for name, words := range allowed {
		if words.MatchString(text) {
			return name
		}
	}
	return ""
}

func TestDependenciesHaveAllowedLicenses(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", "./cmd/lockstep")
	list.Dir = "../.."
	out, err := list.Output()
	require.NoError(t, err, "list the binary's modules")
	counts, seen := map[string]int{}, map[string]bool{}
	for line := range bytes.Lines(out) {
		path, dir, found := strings.Cut(strings.TrimSpace(string(line)), " ")
		if !found || seen[path] {
			continue
		}
		seen[path] = true
		license := moduleLicense(t, dir)
		counts[license]++
		assert.NotEmpty(t, license, "%s has no allowed license in %s", path, dir)
	}
	assert.GreaterOrEqual(t, len(seen), 20, "only %d modules were looked at", len(seen))
	t.Logf("%d modules: %v", len(seen), counts)
}

// moduleLicense returns the license of a module, or "" unless all its license files have allowed ones.
func moduleLicense(t *testing.T, dir string) (license string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(name, "LICENSE") && !strings.HasPrefix(name, "LICENCE") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		if license = classify(string(text)); license == "" {
			return ""
		}
	}
	return license
}

// TestDisallowedLicensesAreFound: the test above fails where it should.
func TestDisallowedLicensesAreFound(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"GNU GENERAL PUBLIC LICENSE\nVersion 3":                                         "",
		"Apache License, Version 2.0\n\"Commons Clause\" License Condition":             "",
		"All rights reserved.":                                                          "",
		"Licensed under the\nApache License,\n  Version 2.0":                            "Apache-2.0",
		"Permission is hereby granted, free of charge, to any person\nobtaining a copy": "MIT",
	} {
		assert.Equal(t, want, classify(text), "%q", text)
	}
	assert.Empty(t, moduleLicense(t, t.TempDir()), "a module without a license")
}

// header is how a source begins, but for a line for its interpreter or the compiler.
var header = regexp.MustCompile(`^(#!.*\n|//go:build .*\n\n)?(//|#) Copyright The Lockstep Authors\.\n(//|#) SPDX-License-Identifier: Apache-2\.0\n`)

// TestSourcesHaveTheHeader reads the beginning of each source in Git. Copies of foreign sources have the names of others, such as
// dns.go.txt.
func TestSourcesHaveTheHeader(t *testing.T) {
	t.Parallel()
	const root = "../.."
	tracked, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "*.go", "*.proto", "*.sh", "*.js", "*.ts", "*.mts").Output()
	require.NoError(t, err)
	files := strings.Fields(string(tracked))
	require.GreaterOrEqual(t, len(files), 500, "only %d sources were found", len(files))
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		assert.True(t, header.Match(content), "%s does not begin with the copyright and %q", file, "SPDX-License-Identifier: Apache-2.0")
	}
}

func TestHeaderIsFound(t *testing.T) {
	t.Parallel()
	const lines = "// Copyright The Lockstep Authors.\n// SPDX-License-Identifier: Apache-2.0\n"
	for source, want := range map[string]bool{
		lines + "\npackage a\n":                              true,
		"//go:build !ignore_autogenerated\n\n" + lines:       true,
		"#!/bin/sh\n" + strings.ReplaceAll(lines, "//", "#"): true,
		"":                        false,
		"package a\n\n\n" + lines: false,
		"// Copyright The Lockstep Authors.\npackage a\n":     false,
		strings.Replace(lines, "Apache", "GPL", 1):            false,
		strings.Replace(lines, "The Lockstep", "Other", 1):    false,
		"// Copyright The Lockstep Authors.\n\n" + lines[35:]: false,
	} {
		assert.Equal(t, want, header.MatchString(source), "%q", source)
	}
}
