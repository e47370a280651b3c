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
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, content)
	}
	for name, content := range releases[0] {
		if !bytes.Equal(content, releases[1][name]) {
			t.Errorf("two builds of the same sources differ in %s", name)
		}
	}
	if len(releases[0]) != len(releases[1]) {
		t.Errorf("two builds have %d and %d files", len(releases[0]), len(releases[1]))
	}
	out := filepath.Join(dir, "one")

	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--quiet", "checksums.txt")
	check.Dir = out
	if output, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	if n := bytes.Count(releases[0]["checksums.txt"], []byte("\n")); n != len(releases[0])-1 {
		t.Errorf("%d checksums of %d files", n, len(releases[0])-1)
	}

	mustBeStatic(t, filepath.Join(out, binary))
	digest := mustBeImage(t, filepath.Join(out, "image"), releases[0][binary])
	if want := repository + ":v0.1.0-test@" + digest + "\n"; string(releases[0]["image-digest.txt"]) != want {
		t.Errorf("image-digest.txt is %q, want %q", releases[0]["image-digest.txt"], want)
	}

	chart := unpack(t, releases[0]["lockstep-0.1.0-test.tgz"])
	for file, text := range map[string]string{
		"lockstep/Chart.yaml":                       "\nversion: 0.1.0-test\nappVersion: v0.1.0-test\n",
		"lockstep/values.yaml":                      "repository: " + repository + "\n",
		"lockstep/files/base/role.yaml":             "name: lockstep-driver\n",
		"lockstep/files/deployment/deployment.yaml": "image: lockstep\n",
	} {
		if !strings.Contains(chart[file], text) {
			t.Errorf("the chart's %s lacks %q:\n%s", file, text, chart[file])
		}
	}
	if !strings.Contains(chart["lockstep/values.yaml"], "digest: "+digest+"\n") {
		t.Error("the chart does not pin the digest")
	}
	for file, content := range unpack(t, releases[0]["kustomize.tar.gz"]) {
		if strings.Contains(content, " image: lockstep\n") {
			t.Errorf("%s does not pin the image", file)
		}
	}
	if len(releases[0]["LICENSE"]) == 0 {
		t.Error("the license is missing")
	}
	if sbom := string(releases[0][binary+".cdx.json"]); !strings.Contains(sbom, "pkg:golang/k8s.io/client-go@") {
		t.Errorf("the SBOM lacks a dependency: %.300s", sbom)
	}
	version, err := exec.CommandContext(t.Context(), filepath.Join(out, binary), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(version), "v0.1.0-test") {
		t.Errorf("lockstep version: %v\n%s", err, version)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), "git", "init", "-q", checkout).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for version, want := range map[string]string{"": "want a semantic version", "0.1.0": "want a semantic version", "v0.1.0": "tools/"} {
		out := filepath.Join(t.TempDir(), "dist")
		output, err := release(t, checkout, out, "VERSION="+version)
		if err == nil || !strings.Contains(string(output), want) {
			t.Errorf("%q: %v, want an error with %q: %s", version, err, want, output)
		}
		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q left %s", version, out)
		}
	}
}

// mustBeStatic fails if the binary needs a library or a loader, which an image from scratch does not have.
func mustBeStatic(t *testing.T, path string) {
	t.Helper()
	binary, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = binary.Close() }()
	for _, segment := range binary.Progs {
		if segment.Type == elf.PT_INTERP {
			t.Error("the binary needs a loader")
		}
	}
	if libraries, err := binary.ImportedLibraries(); err == nil && len(libraries) > 0 {
		t.Errorf("the binary needs %v", libraries)
	}
}

// mustBeImage validates the layout, and returns the digest of its only image.
func mustBeImage(t *testing.T, path string, binary []byte) string {
	t.Helper()
	outer, err := layout.ImageIndexFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(outer); err != nil {
		t.Error(err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("the layout has %v, %v; want one image", manifest, err)
	}
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	images, err := index.IndexManifest()
	if err != nil || len(images.Manifests) != 1 {
		t.Fatalf("the image has %v, %v; want one platform", images, err)
	}
	img, err := index.Image(images.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/lockstep"}, config.Config.Entrypoint); diff != "" || config.Config.User != "65532:65532" ||
		config.Architecture != runtime.GOARCH || config.OS != "linux" {
		t.Errorf("the image's configuration is %+v", config)
	}
	content := untar(t, extract(t, img))
	if content["lockstep"] != string(binary) || content["LICENSE"] == "" || len(content) != 2 {
		t.Errorf("the image has %d files, want the binary and its license", len(content))
	}
	return manifest.Manifests[0].Digest.String()
}

func extract(t *testing.T, img v1.Image) []byte {
	t.Helper()
	files := mutate.Extract(img)
	defer func() { _ = files.Close() }()
	content, err := io.ReadAll(files)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// unpack returns the files of a compressed archive.
func unpack(t *testing.T, content []byte) map[string]string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}
