// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"context"
	"os"
	"testing"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
)

func TestMain(m *testing.M) {
	os.Exit(Main(m, WithAudit()))
}

// eventually waits until check returns nil, and fails with its last error.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	await.Nil(t, what, check)
}
