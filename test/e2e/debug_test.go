// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/require"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// `lockstep debug record` records a release until it ends, and `lockstep debug replay` makes every decision again.
//
// Proves: `lockstep debug record` and `replay`: every decision of a release is made again.
func TestDebugRecord(t *testing.T) {
	e := newEnv(t)
	w := e.adopt(model("model", 2, 1))
	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	path := driver.Path(t)
	recording, err := os.Create(filepath.Join(t.TempDir(), "recording.jsonl"))
	require.NoError(t, err)
	defer recording.Close()
	cmd := exec.Command(path, "debug", "record", "model", "--namespace", w.namespace, "--kubeconfig", driver.Kubeconfig(t, w.cluster))
	cmd.Stdout, cmd.Stderr = recording, os.Stderr
	recorder, err := child.Run(cmd)
	require.NoError(t, err)
	defer recorder.End(syscall.SIGKILL, await.Patience)
	read := func() string {
		raw := files.Read(t, recording.Name())
		return string(raw)
	}
	await.Nil(t, "the first decision is recorded", func(context.Context) error {
		if read() == "" {
			return errors.New("the recording is empty")
		}
		return nil
	})
	w.upgrade("r1", 0)
	w.awaitState(pb.State_STATE_READY)
	w.finalize("r1", promote)
	select {
	case <-recorder.Exited:
	case <-t.Context().Done():
		t.Fatal("`lockstep debug record` does not end with the release")
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("`lockstep debug record`: exit code %d", code)
	}
	for _, words := range []string{`"STATE_HOLDING"`, `"STATE_READY"`, `"STATE_COMPLETED"`} {
		if !strings.Contains(read(), words) {
			t.Errorf("the recording does not contain %s", words)
		}
	}
	if strings.Contains(read(), "example.com/model:v2") {
		t.Error("the recording contains the image: templates are not redacted")
	}
	out, err := exec.CommandContext(t.Context(), path, "debug", "replay", recording.Name()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all as recorded") {
		t.Errorf("%v: %s", err, out)
	}
}
