// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package text formats objects and logs for the messages of tests, and collects output.
package text

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

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

// Buffer is a bytes.Buffer that a test may read while a program writes. The zero value is ready to use.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
