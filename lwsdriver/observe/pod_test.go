// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
)

func TestNewPod(t *testing.T) {
	v := NewPod(lwstest.Pod("vllm-1"))
	assert.True(t, v.ready && v.since.Equal(lwstest.Noon) && v.leader && v.set == "vllm" && v.Group == "1" && v.Revision == "r1" && v.size == 3,
		"leader seen as %+v", v)
	assert.True(t, v.Labels == nil && v.ResourceVersion == "7" && v.Name == "vllm-1", "metadata kept: %+v", v.ObjectMeta)
	assert.False(t, NewPod(lwstest.Pod("vllm-1-2")).leader, "a worker is seen as leader")
}

func TestShorten(t *testing.T) {
	for _, tt := range []struct {
		name, in, want string
		limit          int
	}{
		{"short", "ready", "ready", 5},
		{"long", "not ready", "not…", 6},
		{"between runes", "éééé", "é…", 6},
		{"not cut in a rune", "aé", "aé", 3},
		{"no text", "a\xffb", "a\uFFFDb", 10},
		{"empty", "", "", 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Shorten(tt.in, tt.limit)
			assert.True(t, got == tt.want && len(got) <= tt.limit && utf8.ValidString(got), "%q, want %q in %d bytes", got, tt.want, tt.limit)
		})
	}
}

func TestPodMessageIsShort(t *testing.T) {
	v := NewPod(lwstest.Pod("vllm-1", lwstest.Waiting("ImagePullBackOff", strings.Repeat("é\xff", 1000))))
	assert.True(t, len(v.message) <= maxPodMessage && utf8.ValidString(v.message) && strings.HasPrefix(v.message, "container server: ImagePullBackOff"),
		"the message has %d bytes: %q", len(v.message), v.message)
}
