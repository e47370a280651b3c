// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strings"
	"sync"
)

// tailSize is the most bytes of a plugin's stderr that an error quotes.
const tailSize = 512

// tailWriter keeps the last bytes written to it.
type tailWriter struct {
	mu  sync.Mutex
	buf []byte
}

// Write never fails.
func (w *tailWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, p...)
	if over := len(w.buf) - tailSize; over > 0 {
		w.buf = append(w.buf[:0], w.buf[over:]...)
	}
	return len(p), nil
}

// note returns a suffix for an error, empty if nothing was written.
func (w *tailWriter) note() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.TrimSpace(string(w.buf))
	if text == "" {
		return ""
	}
	return fmt.Sprintf("; its stderr ends with %q", text)
}
