// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestTroubleshootingNamesEveryReason: each reason of an error, a state or a group has an entry.
func TestTroubleshootingNamesEveryReason(t *testing.T) {
	t.Parallel()
	named := entries(t)
	reasons := reasonsOfCode(t)
	for _, name := range pb.ErrorReason_name {
		if reason := strings.TrimPrefix(name, "ERROR_REASON_"); reason != "UNSPECIFIED" {
			reasons[reason] = "ErrorReason"
		}
	}
	assert.GreaterOrEqual(t, len(reasons), 100, "found only %d reasons", len(reasons))
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		assert.True(t, slices.Contains(named, reason), "docs/troubleshooting.md has no entry for `%s` (%s)", reason, reasons[reason])
	}
}

// TestTroubleshootingNamesRealMessages: each entry is a reason or a message of the code.
func TestTroubleshootingNamesRealMessages(t *testing.T) {
	t.Parallel()
	reported := reasonsOfCode(t)
	for _, name := range pb.ErrorReason_name {
		reason := strings.TrimPrefix(name, "ERROR_REASON_")
		reported[reason], reported[camel(reason)] = "ErrorReason", "ErrorReason"
	}
	texts := messages(t)
	for _, entry := range entries(t) {
		assert.False(t, reported[entry] == "" && !strings.Contains(texts, entry),
			"docs/troubleshooting.md has an entry for `%s`, which no code reports", entry)
	}
}

// entries returns what troubleshooting.md is searched for: the code in its headings, and in the first column of its tables of
// reasons.
func entries(t *testing.T) []string {
	t.Helper()
	code := regexp.MustCompile("`([^`]+)`")
	var all []string
	reasons := false // in a table of reasons
	for line := range strings.Lines(read(t, root+"/docs/troubleshooting.md")) {
		text := line
		switch {
		case strings.HasPrefix(line, "### "):
		case strings.HasPrefix(line, "| reason |"):
			reasons = true
			continue
		case strings.HasPrefix(line, "|") && reasons:
			text = strings.Split(line, "|")[1]
		default:
			reasons = false
			continue
		}
		for _, m := range code.FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
	}
	assert.GreaterOrEqual(t, len(all), 100, "docs/troubleshooting.md has only %d entries", len(all))
	return all
}

// camel returns the form that an error's reason has in a state: "Forbidden" for "FORBIDDEN".
func camel(reason string) string {
	var b strings.Builder
	for _, word := range strings.Split(reason, "_") {
		b.WriteString(word[:1] + strings.ToLower(word[1:]))
	}
	return b.String()
}

// reporting are the packages that decide on the reasons of states, groups and requests.
var reporting = []string{"lwsdriver/plan", "lwsdriver/observe", "traffic"}

// reasonsOfCode returns each reason that a driver reports, and where: constants named Reason…, and texts that are assigned to
// a field named Reason.
func reasonsOfCode(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	add := func(e ast.Expr, where string) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text := unquote(t, lit); isReason.MatchString(text) {
				out[text] = where
			}
		}
	}
	for _, dir := range reporting {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		require.NoError(t, err)
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			where := strings.TrimPrefix(path, root+"/")
			ast.Inspect(parse(t, path), func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ValueSpec:
					for i, name := range n.Names {
						if i < len(n.Values) && strings.HasPrefix(strings.ToLower(name.Name), "reason") {
							add(n.Values[i], where)
						}
					}
				case *ast.KeyValueExpr:
					if key, ok := n.Key.(*ast.Ident); ok && strings.ToLower(key.Name) == "reason" {
						add(n.Value, where)
					}
				case *ast.AssignStmt:
					for i, left := range n.Lhs {
						if sel, ok := left.(*ast.SelectorExpr); ok && sel.Sel.Name == "Reason" && i < len(n.Rhs) {
							add(n.Rhs[i], where)
						}
					}
				}
				return true
			})
		}
	}
	return out
}

var isReason = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)

// messages returns the strings in the code of the driver, its hosts and commands, and the admission policies.
func messages(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"lwsdriver", "traffic", "internal", "plugin", "config"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case dir == "config" && filepath.Ext(path) == ".yaml":
				b.WriteString(read(t, path))
			case filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") && !d.IsDir():
				ast.Inspect(parse(t, path), func(n ast.Node) bool {
					if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
						b.WriteString(unquote(t, lit) + "\n")
					}
					return true
				})
			}
			return nil
		})
		require.NoError(t, err)
	}
	return b.String()
}

func parse(t *testing.T, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	return f
}

func unquote(t *testing.T, lit *ast.BasicLit) string {
	t.Helper()
	text, err := strconv.Unquote(lit.Value)
	require.NoError(t, err)
	return text
}
