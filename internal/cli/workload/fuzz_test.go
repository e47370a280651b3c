// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A policy file is read or refused as one that is wrong.
func FuzzPolicyFile(f *testing.F) {
	f.Add("style: blue-green\nbatches: [25%, 100%]\nprogress_deadline: 1h30m\nblue_green: {promotion: adopt}\n")
	f.Add("batches: [1]\ngates:\n- {template: error-rate}\n")
	f.Add("a: &a {style: canary}\n<<: *a\n")
	f.Add("--- {}\n--- {}\n")
	path := filepath.Join(f.TempDir(), "policy.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		policy, err := (&policyFlags{file: path}).readFile()
		if err != nil {
			if exit.Code(err) != exit.Usage {
				t.Errorf("code %d of %v", exit.Code(err), err)
			}
			return
		}
		_, _ = record.ParsePolicy(policy)
	})
}
