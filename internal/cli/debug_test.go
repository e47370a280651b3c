// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
)

func TestDebugReplay(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	o := plan.Observation{
		Now:    time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC),
		Stable: plan.Workload{Name: "vllm", Replicas: 1, Size: 1, Rolling: record.Hold()}, Record: &record.Record{Saved: record.Native(record.Hold())},
	}
	o.Key.Namespace, o.Key.Name = "default", "vllm"
	var recording bytes.Buffer
	d, err := plan.Decide(o, nil)
	(&replay.Recorder{To: &recording}).Record(o, nil, d, err)
	same := recording.String()
	other := strings.Replace(same, `"reason":"Held"`, `"reason":"Other"`, 1)
	for name, tc := range map[string]struct {
		args []string
		code int
		says []string
	}{
		"same":      {[]string{write("same", same)}, exit.OK, []string{"1 decisions, all as recorded"}},
		"other":     {[]string{write("other", same+other)}, exit.Error, []string{"decision 2, default/vllm at 2026-01-02T12:00:00Z", `-    "reason": "Other"`, `+    "reason": "Held"`, "1 of 2 decisions differ"}},
		"no file":   {nil, exit.Usage, []string{"one file"}},
		"not there": {[]string{filepath.Join(dir, "x")}, exit.Error, []string{"no such file"}},
		"empty":     {[]string{write("empty", "")}, exit.Usage, []string{"no decisions", "lockstep debug record"}},
		"not JSON":  {[]string{write("text", "hello")}, exit.Usage, []string{"line 1"}},
		"newer":     {[]string{write("newer", `{"version":2}`)}, exit.Usage, []string{"version 2", "wrote it"}},
	} {
		got := runProgram(deadline(t), t, "", append([]string{"debug", "replay"}, tc.args...)...)
		assert.Equal(t, tc.code, got.code, "%s: exit code %d, want %d: %s", name, got.code, tc.code, got.stderr)
		for _, words := range tc.says {
			assert.Contains(t, got.stdout+got.stderr, words, "%s: the output lacks %q: %s%s", name, words, got.stdout, got.stderr)
		}
	}
}

func TestDebugUsageErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"no command": {nil, "record or replay"},
		"no name":    {[]string{"record"}, "name of one LeaderWorkerSet"},
	} {
		got := runProgram(deadline(t), t, "", append([]string{"debug"}, tc.args...)...)
		assert.True(t, got.code == exit.Usage && strings.Contains(got.stderr, tc.says), "%s: exit code %d: %s", name, got.code, got.stderr)
	}
}
