// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// docs/reference-preflight.md has the rules: `make generate` writes it.
func TestRulesReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Rules of preflight\n\nReference of every rule of [`lockstep preflight`](plan.md#preflight), generated from the rules themselves.\n")
	severities := map[pb.Severity]string{pb.Severity_SEVERITY_INFO: "Note", pb.Severity_SEVERITY_WARNING: "Warning", pb.Severity_SEVERITY_ERROR: "Error"}
	for _, rule := range preflight.Rules() {
		fmt.Fprintf(&b, "\n## %s\n\n*%s:* %s. %s.", rule.ID, severities[rule.Severity], rule.Title, rule.Why)
		if rule.Needs != "" {
			fmt.Fprintf(&b, " Reads %s.", rule.Needs)
		}
		if rule.Details != "" {
			fmt.Fprintf(&b, "\n\n%s.", rule.Details)
		}
		fmt.Fprintf(&b, "\n\n**Fix:** %s.\n", rule.Fix)
	}
	const path = "../../docs/reference-preflight.md"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(b.String(), string(got)), "docs/reference-preflight.md is stale, run make generate (-rules +file)")
}
