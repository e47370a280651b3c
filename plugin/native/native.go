// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package native judges the fields with which the user of a host asks the host itself for something. A host manages pods of
// its own, or no pods at all, so most of its fields don't mean for a LeaderWorkerSet what they say. A [Table] lists the fields
// that were judged:
//
//	fields := native.Table{
//		{Path: "strategy.canary.steps[].pause"},
//		{Path: "strategy.canary.steps[].experiment", Verdict: native.Refused, Note: "would start placeholder pods"},
//	}
//	err := native.Refusal(fields.Judge("spec", spec))
//
// A field that is not in the table is refused, so that a field of a newer host is never ignored in silence.
package native

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Verdict is what a field means for a LeaderWorkerSet.
type Verdict int

const (
	// Works is a field that does what the host documents.
	Works Verdict = iota
	// NoEffect is a field that does nothing, and whose absence endangers nothing.
	NoEffect
	// Refused is a field with which no release begins.
	Refused
)

// String returns the verdict as documents name it.
func (v Verdict) String() string {
	return [...]string{"works", "no effect", "refused"}[v]
}

// Field is the judgement of a field and of all fields below it that have none of their own.
type Field struct {
	// Path is the field's path below the root, for example strategy.canary.steps[].setWeight.
	Path string
	// Verdict is about every value except Accepts, null, false, "" and an empty list.
	Verdict Verdict
	// Accepts is a value that works although the field does not: the one with which the host does nothing. Empty means none.
	Accepts string
	// Note is the reason, and what to use instead. Of a field that works it is a restriction, for documents.
	Note string
}

// Table is a list of judged fields.
type Table []Field

// unknown is the judgement of a field that is not in the table.
var unknown = Field{Verdict: Refused, Note: "this version of Lockstep did not judge what it does to a LeaderWorkerSet: remove it"}

// Judge returns the fields that are set and don't work of an object at the path root, as decoded from JSON: with their complete paths, in the
// order of these.
func (t Table) Judge(root string, object map[string]any) []Field {
	j := judge{fields: map[string]Field{}, deeper: map[string]bool{"": true}}
	for _, f := range t {
		j.fields[f.Path] = f
		for i, c := range f.Path {
			if c == '.' || c == '[' {
				j.deeper[f.Path[:i]] = true
			}
		}
	}
	j.walk("", root, object, unknown)
	return j.findings
}

// judge walks through an object.
type judge struct {
	fields map[string]Field
	// deeper has the paths below which there are other judgements.
	deeper   map[string]bool
	findings []Field
}

// walk judges a value. path has the name of the field in the table, at its complete path; above is the judgement of the fields around it.
func (j *judge) walk(path, at string, value any, above Field) {
	f, ok := j.fields[path]
	if !ok {
		f = above
	}
	list, isList := value.([]any)
	object, isObject := value.(map[string]any)
	switch {
	case value == nil, value == false, value == "", isList && len(list) == 0:
	case j.deeper[path] && isList:
		for i, v := range list {
			j.walk(path+"[]", fmt.Sprintf("%s[%d]", at, i), v, f)
		}
	case j.deeper[path] && isObject:
		for _, key := range slices.Sorted(maps.Keys(object)) {
			j.walk(strings.TrimPrefix(child(path, key), "."), child(at, key), object[key], f)
		}
	case f.Verdict == Works, f.Accepts != "" && f.Accepts == fmt.Sprint(value):
	default:
		f.Path = at
		j.findings = append(j.findings, f)
	}
}

// child returns the path of an object's field. A key that is no name, as that of a plugin, is in brackets.
func child(path, key string) string {
	if strings.ContainsAny(key, "./[") {
		return path + "[" + key + "]"
	}
	return path + "." + key
}

// Refusal returns why no release may begin, nil if it may.
func Refusal(findings []Field) error {
	if said := join(findings, Refused); said != "" {
		return errors.New(said)
	}
	return nil
}

// Ignored names the fields that have no effect. Empty means none.
func Ignored(findings []Field) string { return join(findings, NoEffect) }

func join(findings []Field, verdict Verdict) string {
	var said []string
	for _, f := range findings {
		if f.Verdict == verdict {
			said = append(said, f.Path+": "+f.Note)
		}
	}
	return strings.Join(said, "; ")
}
