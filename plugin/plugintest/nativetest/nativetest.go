// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nativetest checks tables of judged fields against the types of a host and against documents.
package nativetest

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-rollouts/lockstep/plugin/native"
)

// The marks around a table in a document.
const (
	begin = "<!-- fields: begin -->\n\n"
	end   = "\n<!-- fields: end -->"
)

// Documented compares the table between the marks of a document with fields. With update it writes that.
func Documented(t *testing.T, fields native.Table, path string, update bool) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	table, after, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("%s has no marks around a table of fields: %q and %q", path, begin, end)
	}
	if update {
		if err := os.WriteFile(path, []byte(before+begin+markdown(fields)+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(markdown(fields), table); diff != "" {
		t.Errorf("%s is stale, run make generate (-fields +document):\n%s", path, diff)
	}
}

// Complete compares fields with the types at some paths: each field of such a type has a judgement, of itself or of all that is below it,
// and each path of the table that begins with one of theirs names a field.
func Complete(t *testing.T, fields native.Table, types map[string]reflect.Type) {
	t.Helper()
	known := map[string]bool{}
	for at, typ := range types {
		for _, f := range reflect.VisibleFields(typ) { // with those of inlined types
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" && !f.Anonymous {
				known[strings.TrimPrefix(at+"."+name, ".")] = true
			}
		}
	}
	for path := range known {
		if !covered(fields, path) {
			t.Errorf("%s is not judged", path)
		}
	}
	for _, f := range fields {
		parent := f.Path[:max(0, strings.LastIndexAny(f.Path, ".["))]
		if _, typed := types[parent]; typed && !known[f.Path] {
			t.Errorf("%s does not exist", f.Path)
		}
	}
}

// covered reports whether a field has a judgement, or fields below it have.
func covered(fields native.Table, path string) bool {
	for _, f := range fields {
		if f.Path == path || strings.HasPrefix(f.Path, path+".") || strings.HasPrefix(f.Path, path+"[") {
			return true
		}
	}
	return false
}

// markdown returns the table for a document.
func markdown(t native.Table) string {
	var b strings.Builder
	b.WriteString("| field of `spec` | verdict | note |\n| --- | --- | --- |\n")
	for _, f := range t {
		note := f.Note
		if f.Accepts != "" {
			note += " (" + f.Accepts + " works)"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Path, f.Verdict, note)
	}
	return b.String()
}
