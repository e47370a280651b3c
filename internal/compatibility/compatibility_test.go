// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package compatibility_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/compatibility"
)

func TestVersionsAreExactAndUnique(t *testing.T) {
	t.Parallel()
	exact := regexp.MustCompile(`^v\d+\.\d+\.\d+$`)
	keys := map[string]bool{}
	for _, c := range compatibility.All() {
		assert.False(t, keys[c.Key], "two components have the key %q", c.Key)
		keys[c.Key] = true
		require.NotEmpty(t, c.Versions, "%s has no tested version", c.Name)
		for _, v := range c.Versions {
			assert.True(t, exact.MatchString(v), "%s: %q is not a version of the form v1.2.3", c.Name, v)
		}
		assert.Len(t, slices.Compact(slices.Sorted(slices.Values(c.Versions))), len(c.Versions), "%s lists a version twice: %q", c.Name, c.Versions)
	}
}

// The default is what Lockstep itself is compiled against.
func TestDefaultsMatchGoMod(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	for _, c := range compatibility.All() {
		module, version := c.Module, c.Default()
		if c.Key == compatibility.Kubernetes.Key {
			// Its libraries are v0.y.z for Kubernetes v1.y.z.
			module, version = "k8s.io/api", strings.Replace(version, "v1.", "v0.", 1)
		}
		want := fmt.Sprintf("\t%s %s\n", module, version)
		assert.Contains(t, string(text), want, "go.mod lacks %q, which is the default of %s", strings.TrimSpace(want), c.Name)
	}
}

func TestVersionsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/compatibility.md")
	require.NoError(t, err)
	var want strings.Builder
	want.WriteString("| component | default | also tested |\n| --- | --- | --- |\n")
	for _, c := range compatibility.All() {
		fmt.Fprintf(&want, "| %s | %s | %s |\n", c.Name, c.Default(), strings.Join(c.Versions[1:], ", "))
	}
	if !strings.Contains(string(text), "\n"+want.String()+"\n") {
		t.Errorf("docs/compatibility.md lacks this table:\n%s", want.String())
	}
}
