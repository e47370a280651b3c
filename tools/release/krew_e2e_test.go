// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// krewPlugin has fields of krew's kind Plugin. Another field, or a misspelled one, fails the test.
type krewPlugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string         `json:"version"`
		Homepage         string         `json:"homepage"`
		ShortDescription string         `json:"shortDescription"`
		Description      string         `json:"description"`
		Caveats          string         `json:"caveats"`
		Platforms        []krewPlatform `json:"platforms"`
	} `json:"spec"`
}

type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

// krew's manifest has each platform of a release once, with its archive and the program in it.
func TestKrewManifest(t *testing.T) {
	t.Parallel()
	r := &release{source: filepath.Join("..", ".."), out: t.TempDir(), version: "v0.1.0", platforms: platforms, date: time.Unix(1, 0)}
	for _, p := range platforms {
		if err := r.write(p.binary(), []byte("program for "+p.String())); err != nil {
			t.Fatal(err)
		}
		if err := r.archiveBinary(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.writeKrewManifest(); err != nil {
		t.Fatal(err)
	}
	mustBeKrewManifest(t, r.out, "v0.1.0",
		platform{"linux", "amd64"}, platform{"linux", "arm64"}, platform{"darwin", "amd64"}, platform{"darwin", "arm64"},
		platform{"windows", "amd64"}, platform{"windows", "arm64"})
}

// mustBeKrewManifest checks the manifest of a release, as strictly as krew validates one.
func mustBeKrewManifest(t *testing.T, out, version string, want ...platform) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(out, krewFile))
	if err != nil {
		t.Fatal(err)
	}
	var plugin krewPlugin
	if err := yaml.UnmarshalStrict(text, &plugin); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	const home = "https://github.com/lockstep-rollouts/lockstep"
	spec := plugin.Spec
	if diff := cmp.Diff(
		[]string{"krew.googlecontainertools.github.com/v1alpha2", "Plugin", "lockstep", version, home},
		[]string{plugin.APIVersion, plugin.Kind, plugin.Metadata.Name, spec.Version, spec.Homepage}); diff != "" {
		t.Errorf("the manifest (-want +got):\n%s", diff)
	}
	if n := len(spec.ShortDescription); n == 0 || n > 50 || strings.Contains(spec.ShortDescription, "\n") || spec.Description == "" {
		t.Errorf("descriptions %q and %q: krew lists the first in one line, and cuts it after 50 characters", spec.ShortDescription, spec.Description)
	}
	if len(spec.Platforms) != len(want) {
		t.Fatalf("%d platforms, want %d", len(spec.Platforms), len(want))
	}
	for i, p := range want {
		got := spec.Platforms[i]
		name := "lockstep_" + p.os + "_" + p.arch + ".tar.gz"
		sum, err := checksum(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		program := map[string]string{"linux": "lockstep", "darwin": "lockstep", "windows": "lockstep.exe"}[p.os]
		expected := krewPlatform{URI: home + "/releases/download/" + version + "/" + name, SHA256: sum, Bin: program}
		expected.Selector.MatchLabels = map[string]string{"os": p.os, "arch": p.arch}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", p, diff)
		}
		archived, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		if files := unpack(t, archived); files[program] == "" || files["LICENSE"] == "" {
			t.Errorf("%s has not %s and LICENSE", name, program)
		}
	}
}
