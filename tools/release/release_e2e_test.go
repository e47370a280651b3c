// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const repository = "registry.example.com/team/lockstep"

// release runs release.sh of a checkout.
func release(t *testing.T, checkout, out string, environment ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(checkout, "tools", "release", "release.sh"))
	cmd.Env = append(append(os.Environ(), "OUT="+out), environment...)
	return cmd.CombinedOutput()
}

// A release of this machine's architecture, built twice: the same bytes, whose parts fit each other.
//
// Proves (test): What a release publishes: two builds are equal, the image, manifests and bill of materials.
func TestRelease(t *testing.T) {
	dir := t.TempDir()
	binary := "lockstep_linux_" + runtime.GOARCH
	var releases []map[string][]byte
	for _, name := range []string{"one", "another"} {
		out := filepath.Join(dir, name)
		if output, err := release(t, filepath.Join("..", ".."), out,
			"VERSION=v0.1.0-test", "IMAGE="+repository, "PLATFORMS=linux/"+runtime.GOARCH, "SNAPSHOT=1"); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		content := map[string][]byte{}
		err := filepath.WalkDir(out, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content[strings.TrimPrefix(path, out+"/")], err = os.ReadFile(path)
			return err
		})
		require.NoError(t, err)
		releases = append(releases, content)
	}
	for name, content := range releases[0] {
		assert.True(t, bytes.Equal(content, releases[1][name]), "two builds of the same sources differ in %s", name)
	}
	assert.Len(t, releases[0], len(releases[1]), "two builds have %d and %d files", len(releases[0]), len(releases[1]))
	out := filepath.Join(dir, "one")

	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--quiet", "checksums.txt")
	check.Dir = out
	output, err := check.CombinedOutput()
	assert.NoError(t, err, output)
	n := bytes.Count(releases[0]["checksums.txt"], []byte("\n"))
	assert.Equal(t, len(releases[0])-1, n, "%d checksums of %d files", n, len(releases[0])-1)

	mustBeStatic(t, filepath.Join(out, binary))
	digest := mustBeImage(t, filepath.Join(out, "image"), releases[0][binary])
	assert.Equal(t, repository+":v0.1.0-test@"+digest+"\n", string(releases[0]["image-digest.txt"]),
		"image-digest.txt is %q", releases[0]["image-digest.txt"])

	chart := unpack(t, releases[0]["lockstep-0.1.0-test.tgz"])
	for file, text := range map[string]string{
		"lockstep/Chart.yaml":                       "\nversion: 0.1.0-test\nappVersion: v0.1.0-test\n",
		"lockstep/values.yaml":                      "repository: " + repository + "\n",
		"lockstep/files/base/role.yaml":             "name: lockstep-driver\n",
		"lockstep/files/deployment/deployment.yaml": "image: lockstep\n",
	} {
		assert.Contains(t, chart[file], text, "the chart's %s lacks %q:\n%s", file, text, chart[file])
	}
	assert.Contains(t, chart["lockstep/values.yaml"], "digest: "+digest+"\n", "the chart does not pin the digest")
	for file, content := range unpack(t, releases[0]["kustomize.tar.gz"]) {
		assert.NotContains(t, content, " image: lockstep\n", "%s does not pin the image", file)
	}
	assert.NotEmpty(t, releases[0]["LICENSE"], "the license is missing")
	assert.Contains(t, string(releases[0][binary+".cdx.json"]), "pkg:golang/k8s.io/client-go@", "the SBOM lacks a dependency")
	version, err := exec.CommandContext(t.Context(), filepath.Join(out, binary), "version").CombinedOutput()
	assert.True(t, err == nil && strings.Contains(string(version), "v0.1.0-test"), "lockstep version: %v\n%s", err, version)
}

// A version that is none and a checkout with changes make no release.
//
// Proves (test): What a release publishes: two builds are equal, the image, manifests and bill of materials.
func TestReleaseRefused(t *testing.T) {
	checkout := t.TempDir()
	script, err := os.ReadFile("release.sh")
	if err == nil {
		err = os.MkdirAll(filepath.Join(checkout, "tools", "release"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(checkout, "tools", "release", "release.sh"), script, 0o700)
	}
	require.NoError(t, err)
	output, err := exec.CommandContext(t.Context(), "git", "init", "-q", checkout).CombinedOutput()
	require.NoError(t, err, output)
	for version, want := range map[string]string{"": "want a semantic version", "0.1.0": "want a semantic version", "v0.1.0": "tools/"} {
		out := filepath.Join(t.TempDir(), "dist")
		output, err := release(t, checkout, out, "VERSION="+version)
		assert.True(t, err != nil && strings.Contains(string(output), want), "%q: %v, want an error with %q: %s", version, err, want, output)
		_, err = os.Stat(out)
		assert.ErrorIs(t, err, os.ErrNotExist, "%q left %s", version, out)
	}
}

// mustBeStatic fails if the binary needs a library or a loader, which an image from scratch does not have.
func mustBeStatic(t *testing.T, path string) {
	t.Helper()
	binary, err := elf.Open(path)
	require.NoError(t, err)
	defer func() { _ = binary.Close() }()
	for _, segment := range binary.Progs {
		assert.NotEqual(t, elf.PT_INTERP, segment.Type, "the binary needs a loader")
	}
	libraries, err := binary.ImportedLibraries()
	assert.False(t, err == nil && len(libraries) > 0, "the binary needs %v", libraries)
}

// mustBeImage validates the layout, and returns the digest of its only image.
func mustBeImage(t *testing.T, path string, binary []byte) string {
	t.Helper()
	outer, err := layout.ImageIndexFromPath(path)
	require.NoError(t, err)
	assert.NoError(t, validate.Index(outer))
	manifest, err := outer.IndexManifest()
	require.True(t, err == nil && len(manifest.Manifests) == 1, "the layout has %v, %v; want one image", manifest, err)
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	require.NoError(t, err)
	images, err := index.IndexManifest()
	require.True(t, err == nil && len(images.Manifests) == 1, "the image has %v, %v; want one platform", images, err)
	img, err := index.Image(images.Manifests[0].Digest)
	require.NoError(t, err)
	config, err := img.ConfigFile()
	require.NoError(t, err)
	assert.True(t, cmp.Diff([]string{"/lockstep"}, config.Config.Entrypoint) == "" && config.Config.User == "65532:65532" && config.Architecture == runtime.GOARCH && config.OS == "linux",
		"the image's configuration is %+v", config)
	content := untar(t, extract(t, img))
	assert.True(t, content["lockstep"] == string(binary) && content["LICENSE"] != "" && len(content) == 2,
		"the image has %d files, want the binary and its license", len(content))
	return manifest.Manifests[0].Digest.String()
}

func extract(t *testing.T, img v1.Image) []byte {
	t.Helper()
	files := mutate.Extract(img)
	defer func() { _ = files.Close() }()
	content, err := io.ReadAll(files)
	require.NoError(t, err)
	return content
}

// unpack returns the files of a compressed archive.
func unpack(t *testing.T, content []byte) map[string]string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(content))
	require.NoError(t, err)
	plain, err := io.ReadAll(r)
	require.NoError(t, err)
	return untar(t, plain)
}

func untar(t *testing.T, content []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		files[header.Name] = string(text)
	}
}
