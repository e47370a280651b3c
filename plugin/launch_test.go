// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const testTimeout = 30 * time.Second

// self is the test binary, which is a plugin when it is started as one.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

func checksum(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

func TestLaunchServesBothServices(t *testing.T) {
	var logs text.Buffer
	logger := slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelWarn}))
	client, err := plugin.Launch(t.Context(), self(t), plugin.LaunchOptions{SHA256: checksum(t, self(t)), Logger: logger})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()

	assert.Equal(t, "fake.lockstep.dev", client.Info().GetName(), "driver")
	ref := &pb.WorkloadRef{Namespace: "default", Name: "vllm"}
	_, err = client.Adopt(t.Context(), &pb.AdoptRequest{Workload: ref})
	assert.NoError(t, err, "Adopt")
	await.True(t, "the plugin's log line arrives with its level and attributes", func() bool {
		return strings.Contains(logs.String(), `level=WARN msg="plugin says hello"`) && strings.Contains(logs.String(), "answer=42")
	})
}

func TestLaunchRefuses(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600))
	role := func(r string) plugin.LaunchOptions { return plugin.LaunchOptions{Env: []string{roleKey + "=" + r}} }
	tests := []struct {
		name   string
		reason string
		path   string
		opts   plugin.LaunchOptions
		want   error
		text   string
	}{
		{"missing", "the path is a typo", filepath.Join(t.TempDir(), "no"), plugin.LaunchOptions{}, fs.ErrNotExist, "no"},
		{"not executable", "the mode was lost in a copy", plain, plugin.LaunchOptions{}, fs.ErrPermission, plain},
		{
			"wrong checksum", "the file is not the one that was vetted", self(t),
			plugin.LaunchOptions{SHA256: strings.Repeat("ab", 32)}, plugin.ErrChecksum, "is not abab",
		},
		{
			"malformed checksum", "a checksum that can't match must not pass as one that is absent", self(t),
			plugin.LaunchOptions{SHA256: "sha256:abc"}, nil, "hex digits",
		},
		{"talker", "another program", self(t), role(roleTalker), plugin.ErrNotPlugin, "hello, this is no plugin"},
		{
			"silent", "a program that waits for something else", self(t),
			plugin.LaunchOptions{Env: []string{roleKey + "=" + roleSilent}, StartTimeout: 200 * time.Millisecond}, plugin.ErrNotPlugin, "timeout",
		},
		{"dies", "the plugin's own complaint must reach the person", self(t), role(roleDies), plugin.ErrNotPlugin, "no kubeconfig here"},
		{"newer", "another handshake version", self(t), role(roleNewer), plugin.ErrNotPlugin, "99"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, err := plugin.Launch(t.Context(), tt.path, tt.opts)
			if err == nil {
				_ = client.Close()
				t.Fatalf("%s: launched", tt.reason)
			}
			assert.False(t, tt.want != nil && !errors.Is(err, tt.want), "%s: error is %v, want %v", tt.reason, err, tt.want)
			assert.ErrorContains(t, err, tt.text, tt.reason)
		})
	}
}

func TestLaunchIsCancelledWhileItWaits(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := plugin.Launch(ctx, self(t), plugin.LaunchOptions{Env: []string{roleKey + "=" + roleSilent}})
	assert.ErrorIs(t, err, context.DeadlineExceeded, "error is %v, want the context's", err)
	assert.LessOrEqual(t, time.Since(begin), testTimeout/2, "took: a cancelled context must not wait for the start timeout")
}

func TestProcessEnds(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		role   string
		end    func(client *plugin.Client, cancel context.CancelFunc)
	}{
		{"close", "Close ends the process", "", func(c *plugin.Client, _ context.CancelFunc) { _ = c.Close() }},
		{"cancel", "ctx governs the process", "", func(_ *plugin.Client, cancel context.CancelFunc) { cancel() }},
		{"close, stretched", "a plugin that does not end by itself is killed", roleStretch, func(c *plugin.Client, _ context.CancelFunc) { _ = c.Close() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pidFile := filepath.Join(t.TempDir(), "pid")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			client, err := plugin.Launch(ctx, self(t), plugin.LaunchOptions{Env: []string{pidFileKey + "=" + pidFile, roleKey + "=" + tt.role}})
			require.NoError(t, err)
			defer func() { _ = client.Close() }()
			pid := readPID(t, pidFile)
			tt.end(client, cancel)
			await.True(t, tt.reason, func() bool { return !running(pid) })
			_, err = client.GetDriverInfo(t.Context(), &pb.GetDriverInfoRequest{})
			if code := status.Code(err); code != codes.Unavailable && code != codes.Canceled {
				t.Errorf("a call after the end: %v, want UNAVAILABLE or CANCELED", err)
			}
		})
	}
}

func TestPluginDiesWithItsHost(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		// connected waits until the host has its client.
		connected bool
	}{
		{"serving", "the plugin notices, lets calls finish and cleans up", true},
		{"starting", "the plugin ends wherever it is", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pidFile, tmp := filepath.Join(t.TempDir(), "pid"), plugintest.ShortDir(t)
			host := exec.CommandContext(t.Context(), self(t))
			host.Env = append(os.Environ(), roleKey+"="+roleHost, pidFileKey+"="+pidFile, "TMPDIR="+tmp)
			var stdout text.Buffer
			host.Stdout = &stdout
			require.NoError(t, host.Start())
			pid := readPID(t, pidFile)
			if tt.connected {
				await.True(t, "the host connects", func() bool { return strings.Contains(stdout.String(), hostConnected) })
			}
			require.NoError(t, host.Process.Kill())
			_ = host.Wait()
			await.True(t, tt.reason, func() bool { return !running(pid) })
			left, err := os.ReadDir(tmp)
			assert.False(t, tt.connected && (err != nil || len(left) != 0), "%s: left behind %v, %v", tt.reason, left, err)
		})
	}
}

func TestServeRefusesToRunByHand(t *testing.T) {
	err := plugin.Serve(t.Context(), nil, nil, plugin.ServeOptions{})
	assert.ErrorIs(t, err, plugin.ErrNotStartedByHost, "Serve() = %v, want ErrNotStartedByHost", err)
}

// readPID waits for the plugin to leave its pid.
func readPID(t *testing.T, path string) int {
	t.Helper()
	var pid int
	await.True(t, "the plugin starts", func() bool {
		text, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(string(text))
		return err == nil
	})
	return pid
}

// running reports whether the process runs. A zombie does not.
func running(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, state, _ := bytes.Cut(stat, []byte(") "))
		return !bytes.HasPrefix(state, []byte("Z"))
	}
	return syscall.Kill(pid, 0) == nil
}

func TestExitedTellsWhenThePluginIsGone(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	client, err := plugin.Launch(t.Context(), self(t), plugin.LaunchOptions{Env: []string{pidFileKey + "=" + pidFile}})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	select {
	case <-client.Exited():
		t.Fatal("it says that the plugin is gone")
	default:
	}
	require.NoError(t, syscall.Kill(readPID(t, pidFile), syscall.SIGKILL))
	select {
	case <-client.Exited():
	case <-time.After(testTimeout):
		t.Error("the plugin was killed, and Exited is not closed")
	}
}

// The test binary plays every process that these tests need: started as a plugin it is one, and started with this
// variable it is what the variable says.
const (
	roleKey = "LOCKSTEP_TEST_ROLE"
	// pidFileKey names the file in which the plugin leaves its pid.
	pidFileKey = "LOCKSTEP_TEST_PID_FILE"

	roleHost    = "host"    // launches a plugin and waits to be killed
	roleTalker  = "talker"  // prints a line that is no handshake, and stays
	roleSilent  = "silent"  // says nothing, and stays
	roleDies    = "dies"    // ends at once with a complaint on stderr
	roleNewer   = "newer"   // handshakes with another version
	roleStretch = "stretch" // a plugin that does not end when asked to

	// hostConnected is what the host says once it has its client.
	hostConnected = "connected"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleKey); role != "" {
		os.Exit(play(role))
	}
	if plugin.IsPlugin() {
		os.Exit(playPlugin(context.Background()))
	}
	os.Exit(m.Run())
}

func play(role string) int {
	switch role {
	case roleHost:
		return playHost()
	case roleTalker:
		fmt.Fprintln(os.Stdout, "hello, this is no plugin")
		select {}
	case roleSilent:
		<-time.After(time.Hour)
	case roleDies:
		fmt.Fprintln(os.Stderr, "no kubeconfig here")
		return 3
	case roleNewer:
		fmt.Fprintln(os.Stdout, "1|99|unix|/nowhere|grpc|")
	case roleStretch:
		go playPlugin(context.Background())
		select {}
	}
	return 0
}

// playPlugin is what a driver's main does.
func playPlugin(ctx context.Context) int {
	logger := slog.New(plugin.NewLogHandler(os.Stderr, slog.LevelDebug))
	logger.Warn("plugin says hello", "answer", 42)
	if path := os.Getenv(pidFileKey); path != "" {
		if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			return 1
		}
	}
	driver := plugintest.NewFakeDriver()
	driver.SetWorkload("default", "vllm", 4, "rev-1")
	if err := plugin.Serve(ctx, driver, driver, plugin.ServeOptions{Logger: logger}); err != nil {
		return 1
	}
	return 0
}

// playHost launches the plugin and waits for the end that the test has in mind for it.
func playHost() int {
	self, err := os.Executable()
	if err != nil {
		return 1
	}
	if _, err := plugin.Launch(context.Background(), self, plugin.LaunchOptions{Env: []string{roleKey + "="}}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, hostConnected)
	select {}
}
