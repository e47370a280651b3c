// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
)

func TestInstanceOfArgosController(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"none":                   {[]string{"rollouts-controller"}, ""},
		"two arguments":          {[]string{"rollouts-controller", "--namespaced", "--instance-id", "blue", "--loglevel", "debug"}, "blue"},
		"one argument":           {[]string{"/bin/rollouts-controller", "--rollout-threads=20", "--instance-id=blue", "-n", "argo"}, "blue"},
		"the last one counts":    {[]string{"rollouts-controller", "--instance-id=blue", "--instance-id=green"}, "green"},
		"after one it is unlike": {[]string{"rollouts-controller", "--instance-ids", "x", "--leader-elect", "--instance-id", "blue"}, "blue"},
		"empty":                  {[]string{"rollouts-controller", "--instance-id="}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := instanceIn([]byte(strings.Join(test.args, "\x00") + "\x00"))
			if err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
	if id, err := instanceIn([]byte("rollouts-controller\x00--instance-id\x00")); err == nil {
		t.Errorf("a flag without a value: %q", id)
	}
	if _, err := parentInstance(); err != nil {
		t.Errorf("the parent of this process: %v", err)
	}
}
