// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write docs/reference-values.md")

// docs/reference-values.md has the chart's values, with the comments of values.yaml: `make generate` writes it.
func TestValuesReference(t *testing.T) {
	raw, err := os.ReadFile("chart/values.yaml")
	require.NoError(t, err)
	var file yaml.Node
	require.NoError(t, yaml.Unmarshal(raw, &file))
	var b strings.Builder
	b.WriteString("# Values of the chart\n\nReference of [config/chart](../config/chart), generated from its values.yaml. " +
		"[values.schema.json](../config/chart/values.schema.json)\nhas what each accepts; Helm refuses others.\n\n| value | default | meaning |\n| --- | --- | --- |\n")
	rows(t, &b, "", file.Content[0])
	const path = "../docs/reference-values.md"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(b.String(), string(got)), "docs/reference-values.md is stale, run make generate (-values +file)")
}

// rows writes a row for each value, and for each comment about several.
func rows(t *testing.T, b *strings.Builder, prefix string, mapping *yaml.Node) {
	t.Helper()
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		comment := strings.Join(strings.Fields(strings.ReplaceAll(key.HeadComment, "#", " ")), " ")
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
			if comment != "" {
				fmt.Fprintf(b, "| `%s` | | %s |\n", name, comment)
			}
			rows(t, b, name+".", value)
			continue
		}
		text, err := yaml.Marshal(value)
		require.NoError(t, err)
		shown := strings.TrimSpace(strings.Split(string(text), "\n#")[0])
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", name, shown, comment)
	}
}
