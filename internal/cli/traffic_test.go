// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
)

// Header routes are set once, when the first batch is ready, before any weight.
func TestReleaseSetsHeaderRoutes(t *testing.T) {
	t.Parallel()
	fake := hosttest.New()
	args := with(canary, "--service", "vllm", "--http-route", "vllm", "--weights", "0,30,60",
		"--canary-header", "x-canary=a=b", "--canary-cookie", "tester", "--canary-cookie", "group=beta")
	got := runProgram(deadline(t), t, hosttest.Serve(t, fake).Address, args...)
	require.Equal(t, exit.OK, got.code, "exit code:\n%s", got.stderr)
	var calls []string
	for _, call := range fake.Calls() {
		if strings.HasPrefix(call, "Set") || strings.HasPrefix(call, "Upgrade") || strings.HasPrefix(call, "Finalize") {
			calls = append(calls, call)
		}
	}
	want := []string{
		"UpgradeBatch 0", "SetHeaderRoute header-1 x-canary=a=b", "SetHeaderRoute cookie-1 tester=always", "SetHeaderRoute cookie-2 group=beta",
		"UpgradeBatch 1", "SetWeight 30", "UpgradeBatch 2", "SetWeight 60", "Finalize PROMOTE",
	}
	assert.Empty(t, cmp.Diff(want, calls), "calls: -want, +got")
	said := "sending requests with header x-canary: a=b or cookie tester=always or cookie group=beta"
	assert.Contains(t, got.stdout+got.stderr, said, "the output lacks %q:\n%s", said, got.stdout)
}

// The command to resume has the same traffic flags.
func TestHintsKeepTheTrafficFlags(t *testing.T) {
	t.Parallel()
	fake := hosttest.New()
	fake.OnUpgrade = failed
	args := with(canary, "--service", "vllm", "--http-route", "a", "--http-route", "b", "--weights", "10,50,100")
	got := runProgram(deadline(t), t, hosttest.Serve(t, fake).Address, args...)
	for _, want := range []string{"--service vllm", "--http-route a,b", "--weights 10,50,100"} {
		assert.Contains(t, got.stderr, want, "stderr has no %q:\n%s", want, got.stderr)
	}
}

func TestStatusOfRoutedRelease(t *testing.T) {
	t.Parallel()
	fake := hosttest.New()
	address := hosttest.Serve(t, fake).Address
	args := with(canary, "--service", "vllm", "--http-route", "vllm", "--weights", "10,30,60", "--no-promote")
	got := runProgram(deadline(t), t, address, args...)
	require.Equal(t, exit.OK, got.code, "exit code %d:\n%s", got.code, got.stderr)
	want := "Traffic   canary 60%, stable 40% of requests (routed)\n"
	got = runProgram(deadline(t), t, address, "status", "vllm")
	assert.Contains(t, got.stdout, want, "want %q:\n%s", want, got.stdout)
	calls := fake.Calls()
	for _, want := range []string{"SetWeight 10", "SetWeight 30", "SetWeight 60"} {
		assert.True(t, slices.Contains(calls, want), "calls = %v, want %s among them", calls, want)
	}
}
