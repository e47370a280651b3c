// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// writeModule writes a module with a program that imports the standard library only.
func writeModule(t *testing.T, main string) module {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"go.mod": "module example.com/m\n\ngo 1.26\n", "go.sum": "", "main.go": main} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return module{name: "m", version: "v1", source: dir, programs: []program{{"hello", "example.com/m"}}, ldflags: "-X main.who=world"}
}

const helloMain = `package main

var who string

func main() { println("hello", who) }
`

func TestBuildIsCached(t *testing.T) {
	t.Setenv(CacheEnv, t.TempDir())
	m := writeModule(t, helloMain)
	var builds [3]build
	var group sync.WaitGroup
	for i := range builds {
		group.Go(func() {
			var err error
			builds[i], err = m.build(t.Context(), t.Output())
			assert.NoError(t, err)
		})
	}
	group.Wait()
	out, err := exec.Command(builds[0].program("hello")).CombinedOutput()
	assert.True(t, err == nil && string(out) == "hello world\n", "the program printed %q (%v)", out, err)
	assert.True(t, builds[1] == builds[0] && builds[2] == builds[0], "the builds differ: %v", builds)
	left, _ := filepath.Glob(filepath.Join(os.Getenv(CacheEnv), "m", ".building-*"))
	assert.Empty(t, left, "left behind: %v", left)
	t.Setenv("PATH", "")
	again, err := m.build(t.Context(), t.Output())
	assert.True(t, err == nil && again == builds[0], "a cached build needs the go command: %v, %v", again, err)
}

func TestCacheKey(t *testing.T) {
	m := writeModule(t, helloMain)
	p := platform{"go1.26", "linux", "amd64"}
	key := func(m module, p platform) string {
		t.Helper()
		key, err := m.cacheKey(m.source, p)
		require.NoError(t, err)
		return key
	}
	base := key(m, p)
	again := key(m, p)
	assert.Equal(t, base, again, "the key is not stable: %s, %s", base, again)
	changed := m
	changed.ldflags = "-X main.who=you"
	others := map[string]string{
		"other flags":      key(changed, p),
		"other Go":         key(m, platform{"go1.27", "linux", "amd64"}),
		"other machine":    key(m, platform{"go1.26", "linux", "arm64"}),
		"other dependency": "",
	}
	require.NoError(t, os.WriteFile(filepath.Join(m.source, "go.sum"), []byte("x"), 0o600))
	others["other dependency"] = key(m, p)
	seen := map[string]string{base: "the first"}
	for name, k := range others {
		before, ok := seen[k]
		assert.False(t, ok, "%s has the key of %s", name, before)
		seen[k] = name
	}
}

func TestModulesAreFound(t *testing.T) {
	for _, s := range selectables {
		for _, version := range s.Versions {
			t.Setenv(s.env, version)
			o, err := newOptions([]Option{WithTraefik(), WithArgo(), WithKruise()})
			require.NoError(t, err)
			for _, m := range o.modules() {
				dir, err := m.folder()
				assert.NoError(t, err, "module %s: %q", m, dir)
			}
		}
		t.Setenv(s.env, "")
	}
}
