// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A control plane of downloaded programs starts, with the etcd that is built beside them. A server on loopback serves the programs that
// were built before: Kubernetes' own site is not tried.
//
// Proves: `make demo PREBUILT=yes`: a control plane of downloaded programs, from a server on loopback.
func TestClusterOfDownloadedPrograms(t *testing.T) {
	o, err := newOptions([]Option{WithLog(t.Output())})
	require.NoError(t, err)
	m := kubernetesModule(o.versions)
	built, err := m.build(t.Context(), o.log)
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, built.program(filepath.Base(r.URL.Path)))
	}))
	defer server.Close()
	local := prebuilt{site: server.URL + "/", sums: map[string]string{}}
	downloaded, _ := officialPrograms.replace(m, hostPlatform())
	for _, d := range downloaded.downloads {
		content, err := os.ReadFile(built.program(d.name))
		require.NoError(t, err)
		local.sums[strings.TrimPrefix(d.url, officialPrograms.site)] = sumOf(content)
	}
	if len(local.sums) == 0 {
		t.Fatalf("no prebuilt programs for %v", hostPlatform())
	}
	// In another cache only the other modules are built.
	root, err := cacheRoot()
	require.NoError(t, err)
	another := t.TempDir()
	for _, other := range o.modules() {
		if other.name != m.name {
			require.NoError(t, os.Symlink(filepath.Join(root, other.name), filepath.Join(another, other.name)))
		}
	}
	t.Setenv(CacheEnv, another)
	c, err := Start(t.Context(), WithLog(t.Output()), WithNodes(1, nil), func(o *options) { o.prebuilt = local })
	require.NoError(t, err)
	defer c.Stop()
	done, err := c.build(t.Context(), kubernetesModule)
	assert.True(t, err == nil && filepath.Dir(filepath.Dir(done.dir)) == another, "the programs are in %s (%v) instead of %s", done.dir, err, another)
	entries, err := filepath.Glob(filepath.Join(another, m.name, "*", "bin", "*"))
	assert.True(t, err == nil && len(entries) == 4, "want one build of four programs, got %v (%v)", entries, err)
}
