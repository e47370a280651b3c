// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/host/hosttest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The output of a release, in either format, is the input of its picture.
func TestPicture(t *testing.T) {
	for _, format := range []string{"json", "yaml"} {
		driver := hosttest.New()
		driver.Set(func(c *pb.BatchContext) {
			c.Groups = []*pb.Group{{Role: pb.GroupRole_GROUP_ROLE_STABLE, Leader: "vllm-0", Revision: "aaaa", Ready: true}}
		})
		release := runProgram(deadline(t), t, hosttest.Serve(t, driver).Address, "release", "vllm", "--batches", "50%,100%", "--release-id", "r7", "-o", format)
		if release.code != exit.OK {
			t.Fatalf("exit code %d: %s", release.code, release.stderr)
		}
		path := filepath.Join(t.TempDir(), "recorded")
		if err := os.WriteFile(path, []byte(release.stdout), 0o600); err != nil {
			t.Fatal(err)
		}
		got := runProgram(deadline(t), t, "", "picture", path)
		if got.code != exit.OK {
			t.Fatalf("%s: exit code %d: %s", format, got.code, got.stderr)
		}
		for _, words := range []string{"<title>default/vllm: r7</title>", "promoted to bbbb", "<title>batch 2 of 2 (100%)</title>", ">group 0<"} {
			if !strings.Contains(got.stdout, words) {
				t.Errorf("%s: the picture has no %q", format, words)
			}
		}
	}
}

func TestPictureErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no file":       {nil, exit.Usage, "one file"},
		"not there":     {[]string{filepath.Join(dir, "x")}, exit.Error, "no such file"},
		"not documents": {[]string{write("a", "{\n")}, exit.Usage, "read document 1"},
		"no context":    {[]string{write("b", `{"event": "finished", "context": 7}`)}, exit.Usage, "read the context"},
		"final only":    {[]string{write("c", `{"event": "finished", "time": "2026-01-02T12:00:00Z"}`)}, exit.Usage, "without --final"},
	} {
		got := runProgram(deadline(t), t, "", append([]string{"picture"}, tc.args...)...)
		if got.code != tc.code || !strings.Contains(got.stderr, tc.says) {
			t.Errorf("%s: exit code %d, want %d: %s", name, got.code, tc.code, got.stderr)
		}
	}
}
