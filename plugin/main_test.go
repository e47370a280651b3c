// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
)

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
	if err := plugin.Serve(ctx, driver, driver, plugin.WithServeLogger(logger)); err != nil {
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
	if _, err := plugin.Launch(context.Background(), self, plugin.WithEnv(roleKey+"=")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, hostConnected)
	select {}
}
