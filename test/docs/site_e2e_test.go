// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package docs

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSite: the documentation is built as a site, in which each page is, and no link is dead. It has no limit of its own, since npm downloads
// 60 MB, which took from 10 s to 2 min.
//
// Proves (test): The documentation is a site, in which each page is and no link is dead.
func TestSite(t *testing.T) {
	t.Parallel()
	build := exec.CommandContext(t.Context(), "make", "site")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "make site: %v\n%s", err, out)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.True(t, err == nil && len(pages) >= 20, "%d pages, %v", len(pages), err)
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		if name == "README" {
			name = "index"
		}
		html := read(t, filepath.Join(root, "dist", "site", name+".html"))
		assert.True(t, strings.Contains(html, "<h1 id=") && !strings.Contains(html, `href="../`),
			"%s.html has no title, or a link out of the site", name)
	}
}
