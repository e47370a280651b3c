// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// task is a line of the Makefile that `make help` prints.
var task = regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `)

// TestContributingHasEveryTask: the table of commands in CONTRIBUTING.md has each task of the Makefile.
func TestContributingHasEveryTask(t *testing.T) {
	t.Parallel()
	contributing := read(t, filepath.Join(root, "CONTRIBUTING.md"))
	tasks := task.FindAllStringSubmatch(read(t, filepath.Join(root, "Makefile")), -1)
	require.GreaterOrEqual(t, len(tasks), 10, "the Makefile has only %d tasks", len(tasks))
	for _, match := range tasks {
		row := regexp.MustCompile("(?m)^\\| `make " + match[1] + "[` ]")
		name := match[1]
		assert.False(t, name != "help" && !row.MatchString(contributing), "the table in CONTRIBUTING.md lacks make %s", name)
	}
}
