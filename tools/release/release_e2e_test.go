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
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const image = "registry.example.com/team/lockstep"

// A release of this machine's architecture, built twice: the same bytes, whose parts fit each other.
//
// Proves (test): What a release publishes: two builds are equal, the image, manifests and bill of materials.
func TestRelease(t *testing.T) {
	dir := t.TempDir()
	p := platform{"linux", runtime.GOARCH}
	var releases []map[string][]byte
	for _, name := range []string{"one", "another"} {
		r := &release{
			source: filepath.Join("..", ".."), out: filepath.Join(dir, name), version: "v0.1.0-test", image: image, platforms: []platform{p},
			commit: strings.Repeat("a", 40), date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		}
		if err := r.build(t.Context()); err != nil {
			t.Fatal(err)
		}
		files, err := tree(r.out, ".")
		if err != nil {
			t.Fatal(err)
		}
		content := map[string][]byte{}
		for _, f := range files {
			content[f.name] = f.content
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

	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--quiet", checksumsFile)
	check.Dir = out
	if output, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	if n := bytes.Count(releases[0][checksumsFile], []byte("\n")); n != len(releases[0])-1 {
		t.Errorf("%d checksums of %d files", n, len(releases[0])-1)
	}

	mustBeStatic(t, filepath.Join(out, p.binary()))
	digest := mustBeImage(t, filepath.Join(out, imageLayout), releases[0][p.binary()])
	if want := image + ":v0.1.0-test@" + digest + "\n"; string(releases[0]["image-digest.txt"]) != want {
		t.Errorf("image-digest.txt is %q, want %q", releases[0]["image-digest.txt"], want)
	}

	chart := unpack(t, releases[0]["lockstep-0.1.0-test.tgz"])
	for file, text := range map[string]string{
		"lockstep/Chart.yaml":                       "\nversion: 0.1.0-test\nappVersion: v0.1.0-test\n",
		"lockstep/values.yaml":                      "repository: " + image + "\n",
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
	if sbom := string(releases[0][p.binary()+".cdx.json"]); !strings.Contains(sbom, "pkg:golang/k8s.io/client-go@") {
		t.Errorf("the SBOM lacks a dependency: %.300s", sbom)
	}
	version, err := exec.CommandContext(t.Context(), filepath.Join(out, p.binary()), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(version), "v0.1.0-test") {
		t.Errorf("lockstep version: %v\n%s", err, version)
	}
}

// A version that is none, an unknown platform and a checkout with changes make no release.
//
// Proves (test): What a release publishes: two builds are equal, the image, manifests and bill of materials.
func TestReleaseRefused(t *testing.T) {
	source := t.TempDir()
	if output, err := exec.CommandContext(t.Context(), "git", "init", "-q", source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if err := os.WriteFile(filepath.Join(source, "changed.go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"-version=":                             "want a semantic version",
		"-version=0.1.0":                        "want a semantic version",
		"-version=v0.1.0":                       "changed.go",
		"-version=v0.1.0 -platform=plan9/amd64": "want one of [linux/amd64 ",
	} {
		out := filepath.Join(t.TempDir(), "dist")
		err := run(t.Context(), append(strings.Fields(args), "-source", source, "-out", out))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s left %s", args, out)
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
