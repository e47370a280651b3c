// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInstanceOfArgosController(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
		fail bool
	}{
		"none":                   {},
		"two arguments":          {args: []string{"--namespaced", "--instance-id", "blue", "--loglevel", "debug"}, want: "blue"},
		"one argument":           {args: []string{"--rollout-threads=20", "--instance-id=blue", "-n", "argo"}, want: "blue"},
		"the last one counts":    {args: []string{"--instance-id=blue", "--instance-id=green"}, want: "green"},
		"after one it is unlike": {args: []string{"--instance-ids", "x", "--leader-elect", "--instance-id", "blue"}, want: "blue"},
		"empty":                  {args: []string{"--instance-id="}},
		"no value":               {args: []string{"--instance-id"}, fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A process that has these arguments until its input ends. The shell's own come first, and are flags that are not known.
			controller := exec.CommandContext(t.Context(), "sh", append([]string{"-c", "echo; read _", "rollouts-controller"}, test.args...)...)
			input, err := controller.StdinPipe()
			require.NoError(t, err)
			output, err := controller.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, controller.Start())
			// Until it writes, the kernel may not have its arguments yet.
			_, err = output.Read(make([]byte, 1))
			assert.NoError(t, err)
			t.Cleanup(func() { _, _ = input.Close(), controller.Wait() })
			got, err := instanceOf(controller.Process.Pid)
			assert.True(t, (err != nil) == test.fail && got == test.want, "got %q, %v, want %q", got, err, test.want)
		})
	}
}
