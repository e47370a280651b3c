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

	"github.com/lockstep-rollouts/lockstep/internal/compatibility"
)

func TestVersionsAreExactAndUnique(t *testing.T) {
	t.Parallel()
	exact := regexp.MustCompile(`^v\d+\.\d+\.\d+$`)
	keys := map[string]bool{}
	for _, c := range compatibility.All() {
		if keys[c.Key] {
			t.Errorf("two components have the key %q", c.Key)
		}
		keys[c.Key] = true
		if len(c.Versions) == 0 {
			t.Fatalf("%s has no tested version", c.Name)
		}
		for _, v := range c.Versions {
			if !exact.MatchString(v) {
				t.Errorf("%s: %q is not a version of the form v1.2.3", c.Name, v)
			}
		}
		if sorted := slices.Sorted(slices.Values(c.Versions)); len(slices.Compact(sorted)) != len(c.Versions) {
			t.Errorf("%s lists a version twice: %q", c.Name, c.Versions)
		}
	}
}

// The default is what Lockstep itself is compiled against.
func TestDefaultsMatchGoMod(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range compatibility.All() {
		module, version := c.Module, c.Default()
		if c.Key == compatibility.Kubernetes.Key {
			// Its libraries are v0.y.z for Kubernetes v1.y.z.
			module, version = "k8s.io/api", strings.Replace(version, "v1.", "v0.", 1)
		}
		if want := fmt.Sprintf("\t%s %s\n", module, version); !strings.Contains(string(text), want) {
			t.Errorf("go.mod lacks %q, which is the default of %s", strings.TrimSpace(want), c.Name)
		}
	}
}

func TestVersionsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| component | default | also tested |\n| --- | --- | --- |\n")
	for _, c := range compatibility.All() {
		fmt.Fprintf(&want, "| %s | %s | %s |\n", c.Name, c.Default(), strings.Join(c.Versions[1:], ", "))
	}
	if !strings.Contains(string(text), "\n"+want.String()+"\n") {
		t.Errorf("docs/compatibility.md lacks this table:\n%s", want.String())
	}
}
