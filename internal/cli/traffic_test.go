// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	if got.code != exit.OK {
		t.Fatalf("exit code %d:\n%s", got.code, got.stderr)
	}
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
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls: -want, +got:\n%s", diff)
	}
	if said := "sending requests with header x-canary: a=b or cookie tester=always or cookie group=beta"; !strings.Contains(got.stdout+got.stderr, said) {
		t.Errorf("the output lacks %q:\n%s", said, got.stdout)
	}
}

// The command to resume has the same traffic flags.
func TestHintsKeepTheTrafficFlags(t *testing.T) {
	t.Parallel()
	fake := hosttest.New()
	fake.OnUpgrade = failed
	args := with(canary, "--service", "vllm", "--http-route", "a", "--http-route", "b", "--weights", "10,50,100")
	got := runProgram(deadline(t), t, hosttest.Serve(t, fake).Address, args...)
	for _, want := range []string{"--service vllm", "--http-route a,b", "--weights 10,50,100"} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("stderr has no %q:\n%s", want, got.stderr)
		}
	}
}

func TestStatusOfRoutedRelease(t *testing.T) {
	t.Parallel()
	fake := hosttest.New()
	address := hosttest.Serve(t, fake).Address
	args := with(canary, "--service", "vllm", "--http-route", "vllm", "--weights", "10,30,60", "--no-promote")
	if got := runProgram(deadline(t), t, address, args...); got.code != exit.OK {
		t.Fatalf("exit code %d:\n%s", got.code, got.stderr)
	}
	want := "Traffic   canary 60%, stable 40% of requests (routed)\n"
	if got := runProgram(deadline(t), t, address, "status", "vllm"); !strings.Contains(got.stdout, want) {
		t.Errorf("want %q:\n%s", want, got.stdout)
	}
	calls := fake.Calls()
	for _, want := range []string{"SetWeight 10", "SetWeight 30", "SetWeight 60"} {
		if !slices.Contains(calls, want) {
			t.Errorf("calls = %v, want %s among them", calls, want)
		}
	}
}
