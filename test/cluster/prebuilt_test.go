// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const downloadedProgram = "#!/bin/sh\necho downloaded\n"

// sumOf returns the SHA-256 sum of a program, in hexadecimal.
func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// writePrebuiltModule writes a module with two programs that print "built", and returns it with a site for the second one, tool.
func writePrebuiltModule(t *testing.T, site string) (module, prebuilt) {
	t.Helper()
	t.Setenv(CacheEnv, t.TempDir())
	const main = "package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(\"built\\n\") }\n"
	m := writeModule(t, main)
	require.NoError(t, os.Mkdir(filepath.Join(m.source, "tool"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(m.source, "tool", "main.go"), []byte(main), 0o600))
	m.programs = append(m.programs, program{"tool", "example.com/m/tool"})
	path := "v1/bin/" + runtime.GOOS + "/" + runtime.GOARCH + "/tool"
	return m, prebuilt{site: site + "/", sums: map[string]string{path: sumOf([]byte(downloadedProgram))}}
}

// serveTool answers the request for tool, and fails the test for any other path.
func serveTool(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/v1/bin/"+runtime.GOOS+"/"+runtime.GOARCH+"/tool", r.URL.Path, "request for")
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func write(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

func refuseRequests(t *testing.T) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) { t.Errorf("request for %s", r.URL.Path) }
}

// outputs are what the two programs of a build print.
func outputs(t *testing.T, b build) string {
	t.Helper()
	var all strings.Builder
	for _, name := range []string{"hello", "tool"} {
		out, err := exec.Command(b.program(name)).CombinedOutput()
		assert.NoError(t, err, "run %s", name)
		all.Write(out)
	}
	return strings.Join(strings.Fields(all.String()), " ")
}

// A prebuilt program that can't be downloaded is built.
func TestPrebuiltProgramIsDownloadedOrBuilt(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		want   string
		log    string
	}{
		{"served", write(downloadedProgram), "built downloaded", ""},
		{"not found", http.NotFound, "built built", "404 Not Found: it is built instead"},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(downloadedProgram))
		}, "built built", "unexpected EOF: it is built instead"},
		{"connection closed without an answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			"built built", "EOF: it is built instead"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, p := writePrebuiltModule(t, serveTool(t, test.answer))
			log := &strings.Builder{}
			got, err := options{prebuilt: p}.obtain(t.Context(), m, log)
			require.NoError(t, err)
			assert.Equal(t, test.want, outputs(t, got), "the programs print")
			assert.Contains(t, log.String(), test.log, "the log lacks %q:\n%s", test.log, log)
			t.Setenv("PATH", "")
			p.site = serveTool(t, refuseRequests(t)) + "/"
			again, err := (options{prebuilt: p}).obtain(t.Context(), m, log)
			assert.True(t, err == nil && again == got, "the second time it is %v, %v instead of the cached %v", again, err, got)
		})
	}
}

// Nothing is kept of a program with another checksum, and it is not built behind the user's back.
func TestPrebuiltProgramWithWrongChecksumIsRefused(t *testing.T) {
	m, p := writePrebuiltModule(t, serveTool(t, write("#!/bin/sh\necho something else\n")))
	_, err := options{prebuilt: p}.obtain(t.Context(), m, t.Output())
	assert.True(t, err != nil && strings.Contains(err.Error(), "wrong checksum: "+p.site) && strings.Contains(err.Error(), "tool of m v1"),
		"want an error that names the program and the address, got %v", err)
	entries, err := os.ReadDir(filepath.Join(os.Getenv(CacheEnv), "m"))
	assert.True(t, err == nil && len(entries) == 1 && entries[0].Name() == "lock", "want only the lock, got %v (%v)", entries, err)
}

// Each pinned program is one of the default version, with a SHA-256 sum.
func TestOfficialProgramsArePinned(t *testing.T) {
	t.Setenv("LOCKSTEP_TEST_KUBERNETES", "")
	o, err := newOptions(nil)
	require.NoError(t, err)
	for _, arch := range []string{"amd64", "arm64"} {
		m, _ := officialPrograms.replace(kubernetesModule(o.versions), platform{goos: "linux", goarch: arch})
		assert.True(t, len(m.downloads) == 3 && len(m.programs) == 1 && m.programs[0].name == "etcd",
			"%s: downloads %v, builds %v", arch, m.downloads, m.programs)
		for _, d := range m.downloads {
			sum, err := hex.DecodeString(d.sum)
			assert.True(t, err == nil && len(sum) == sha256.Size && strings.HasPrefix(d.url, "https://"), "%s: %+v: %v", arch, d, err)
		}
	}
}
