// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package text formats objects and logs for the messages of tests.
package text

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// JSON returns a value as JSON, or the error of marshaling it.
func JSON(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// Field returns a field of an object as text, or "" if the object does not have it.
func Field(o *unstructured.Unstructured, path ...string) string {
	v, found, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	if !found || err != nil || v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// LinesAbout returns the lines of Lockstep's log that name a namespace or are errors.
func LinesAbout(namespace, log string) string {
	var found strings.Builder
	for line := range strings.Lines(log) {
		if strings.Contains(line, namespace) || strings.Contains(line, "level=ERROR") {
			found.WriteString(line)
		}
	}
	return found.String()
}
