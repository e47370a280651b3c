// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package child

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUsage(t *testing.T) {
	p, err := Run(exec.Command("sh", "-c", "while :; do :; done"))
	require.NoError(t, err)
	for p.CPU() < 50*time.Millisecond {
		time.Sleep(time.Millisecond)
	}
	resident, peak := p.Memory()
	assert.True(t, resident >= 100<<10 && resident <= 100<<20 && peak >= resident, "%d bytes resident, peak %d", resident, peak)
	p.End(syscall.SIGKILL, time.Minute)
	if resident, peak := p.Memory(); resident+peak != 0 || p.CPU() != 0 {
		t.Errorf("%d bytes resident, peak %d, CPU %s after its end", resident, peak, p.CPU())
	}
}
