// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// makeDemo returns the command of `make demo`, from a dry run.
func makeDemo(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("make", append([]string{"--no-print-directory", "-C", "../..", "-n", "demo"}, args...)...)
	// The tests may run under make, whose variables must not affect this one.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		key, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "KUBECONFIG", "CONTEXT", "YES", "IMAGE", "NEW_IMAGE"}, key)
	})
	cmd.Env = append(cmd.Env, env...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make -n demo: %v\n%s", err, text)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "run ./test/demo") {
			return strings.TrimSpace(line)
		}
	}
	t.Fatalf("make -n demo does not run the demo:\n%s", text)
	return ""
}

func TestMakeIgnoresClusterOfEnvironment(t *testing.T) {
	t.Parallel()
	plain := makeDemo(t, nil)
	if strings.Contains(plain, "-kubeconfig") {
		t.Fatalf("make demo uses an existing cluster: %s", plain)
	}
	env := []string{"KUBECONFIG=/etc/production", "CONTEXT=production", "YES=1", "IMAGE=a", "NEW_IMAGE=b"}
	if got := makeDemo(t, env); got != plain {
		t.Errorf("with a cluster in the environment:\n%s\nwant as without:\n%s", got, plain)
	}
	if got := makeDemo(t, env, "-e"); got != plain {
		t.Errorf("with -e and a cluster in the environment:\n%s\nwant as without:\n%s", got, plain)
	}
}

func TestMakeUsesClusterOfCommandLine(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		args     []string
		want     string
		unwanted string
	}{
		{"kubeconfig", []string{"KUBECONFIG=/a/b"}, " -kubeconfig '/a/b'", "-yes"},
		{"all", []string{"KUBECONFIG=/a", "CONTEXT=c", "YES=1", "IMAGE=i:1", "NEW_IMAGE=i:2"},
			" -kubeconfig '/a' -context 'c' -image 'i:1' -new-image 'i:2' -yes", "environment"},
		{"empty kubeconfig", []string{"KUBECONFIG="}, " -kubeconfig ''", "-yes"},
		{"YES that is not 1", []string{"KUBECONFIG=/a", "YES=0"}, " -kubeconfig '/a'", "-yes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := makeDemo(t, []string{"KUBECONFIG=/environment", "YES=1"}, tt.args...)
			if !strings.HasSuffix(got, tt.want) || strings.Contains(got, tt.unwanted) {
				t.Errorf("make demo %v runs %s; want it to end with %q and to lack %q", tt.args, got, tt.want, tt.unwanted)
			}
		})
	}
}
