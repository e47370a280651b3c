// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"-h"}, &stdout, &stderr); err != nil || !strings.Contains(stderr.String(), "-kubeconfig-out") {
		t.Errorf("-h: %v, %q", err, stderr.String())
	}
	if err := run(t.Context(), []string{"-no-such-flag"}, &stdout, &stderr); err == nil || stdout.Len() > 0 {
		t.Errorf("an unknown flag: %v, %q", err, stdout.String())
	}
}
