// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/lockstep-rollouts/lockstep/test/netns"
)

// On a real node the demo releases containers under streaming requests, loses none, and leaves nothing. What it runs in namespaces of
// its own ends with them: netns.TestNodeIsGone.
func TestDemoOnNode(t *testing.T) {
	if err := netns.NodePossible(); err != nil {
		t.Skipf("this machine can't run a node: %v", err)
	}
	d := startDemo(t, "-node")
	text := d.until(t, "")
	if err := d.Wait(); err != nil {
		t.Errorf("demo: %v", err)
	}
	if !strings.Contains(text, "is complete: 4 groups run revision") {
		t.Error("the demo does not say that the release is complete")
	}
	if !regexp.MustCompile(`(?m)^\d{3,} requests, 0 failed`).MatchString(text) {
		t.Error("the demo does not say that it lost none of hundreds of requests")
	}
	if left, err := os.ReadDir(d.tmp); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}
