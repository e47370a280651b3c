// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// TestLasts: a hook takes as long as its sleeps, if each of them runs once.
func TestLasts(t *testing.T) {
	for _, tt := range []struct {
		command string
		want    time.Duration
		known   bool
	}{
		{"sleep 10", 10 * time.Second, true},
		{"sleep 2m; sleep 5s", 125 * time.Second, true},
		{"sleep 0.5 && sleep 7.5", 8 * time.Second, true},
		{"/bin/drain --sleep 10", 10 * time.Second, true},
		{"/bin/drain", 0, false},
		{"sleep $WAIT", 0, false},
		{"sleep infinity", 0, false},
		{"while curl -sf localhost:8000/busy; do sleep 1; done", 0, false},
		{"until curl -sf localhost:8000/idle; do sleep 1; done", 0, false},
		{"for i in 1 2 3; do sleep 1; done", 0, false},
	} {
		h := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", tt.command}}}
		got, known := hookDuration(h)
		assert.True(t, got == tt.want && known == tt.known, "%q: %s, %t; want %s, %t", tt.command, got, known, tt.want, tt.known)
	}
}
