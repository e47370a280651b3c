// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A command says soon what it waits for, and ends with the culprit and a command to copy.
func TestCommandsNameAPIServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	// Connections are accepted by the kernel, and no request is answered.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	refuses, answersNothing := deadCluster(t), liveCluster(t, "http://"+silent.Addr().String())
	t.Run("commands", func(t *testing.T) {
		for name, args := range map[string][]string{
			"list":        {"status", "--kubeconfig", refuses},
			"list silent": {"status", "--kubeconfig", answersNothing},
			"plan":        {"plan", "vllm", "--kubeconfig", refuses},
			"watch":       {"watch", "--kubeconfig", answersNothing},
			"check":       {"check", "--kubeconfig", answersNothing},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
				text := string(out)
				assert.True(t, err != nil && strings.Count(text, "can't be reached: ") == 1 && !strings.Contains(text, "/apis/") && strings.HasSuffix(text, "kubectl config view --minify --kubeconfig "+args[len(args)-1]+"\n"),
					"lockstep %v: %v\n%s", args, err, text)
				assert.False(t, args[0] != "check" && strings.Count(text, "waiting for the API server at http://127.0.0.1:") != 1,
					"lockstep %v does not say once what it waits for:\n%s", args, text)
			})
		}
	})
}
