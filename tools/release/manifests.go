// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// packageManifests packages the chart and the kustomizations, with the image pinned by version and digest.
func (r *release) packageManifests(digest string) error {
	number := strings.TrimPrefix(r.version, "v")
	chart, err := tree(filepath.Join(r.source, "config", "chart"), "lockstep")
	if err != nil {
		return err
	}
	chart = slices.DeleteFunc(chart, func(f file) bool {
		return path.Base(f.name) == "kustomization.yaml" || path.Base(f.name) == ".helmignore"
	})
	for _, change := range []struct{ file, old, new string }{
		{"lockstep/Chart.yaml", "\nversion: 0.0.0\n", "\nversion: " + number + "\n"},
		{"lockstep/Chart.yaml", "\nappVersion: 0.0.0\n", "\nappVersion: " + r.version + "\n"},
		{"lockstep/values.yaml", "repository: ghcr.io/lockstep-rollouts/lockstep\n", "repository: " + r.image + "\n"},
		{"lockstep/values.yaml", "digest: \"\"\n", "digest: " + digest + "\n"},
	} {
		if err := replace(chart, change.file, change.old, change.new); err != nil {
			return err
		}
	}
	if err := r.writeArchive("lockstep-"+number+".tgz", chart); err != nil {
		return err
	}

	config, err := tree(filepath.Join(r.source, "config"), "config")
	if err != nil {
		return err
	}
	config = slices.DeleteFunc(config, func(f file) bool {
		return path.Ext(f.name) == ".go" || strings.HasPrefix(f.name, "config/chart/")
	})
	pinned := 0
	for i := range config {
		before := config[i].content
		config[i].content = bytes.ReplaceAll(before, []byte(" image: lockstep\n"), []byte(" image: "+r.image+":"+r.version+"@"+digest+"\n"))
		if !bytes.Equal(before, config[i].content) {
			pinned++
		}
	}
	if pinned == 0 {
		return fmt.Errorf("no manifest of config has the image lockstep")
	}
	return r.writeArchive("kustomize.tar.gz", config)
}

// replace replaces text that a file has once.
func replace(files []file, name, old, replacement string) error {
	i := slices.IndexFunc(files, func(f file) bool { return f.name == name })
	if i < 0 {
		return fmt.Errorf("%s does not exist", name)
	}
	if n := bytes.Count(files[i].content, []byte(old)); n != 1 {
		return fmt.Errorf("%s has the text %q %d times, want once", name, old, n)
	}
	files[i].content = bytes.Replace(files[i].content, []byte(old), []byte(replacement), 1)
	return nil
}

// writeBillOfMaterials writes the modules that each Linux binary is built from, as CycloneDX.
func (r *release) writeBillOfMaterials(ctx context.Context) error {
	for _, p := range r.platforms {
		if p.os != "linux" {
			continue
		}
		binary, err := filepath.Abs(filepath.Join(r.out, p.binary()))
		if err != nil {
			return fmt.Errorf("find the binary: %w", err)
		}
		// Without a random serial number and the time. The SBOM has a checksum of the tool, which these flags make the same everywhere.
		if _, err := r.commandWith(ctx, []string{"CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false"}, "go", "tool", "-modfile="+filepath.Join("tools", "sbom", "go.mod"), "cyclonedx-gomod",
			"bin", "-json", "-noserial", "-notimestamp", "-std", "-version", r.version, "-output", binary+".cdx.json", binary); err != nil {
			return err
		}
	}
	return nil
}
