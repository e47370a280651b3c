// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// file is a file of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// archive returns an archive whose bytes depend on the files and the date only.
func archive(files []file, date time.Time) ([]byte, error) {
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for _, f := range files {
		// Without a format, tar chooses one by the content of the header.
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: date, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("archive %s: %w", f.name, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("archive %s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("complete an archive: %w", err)
	}
	return all.Bytes(), nil
}

// writeArchive writes a compressed archive to the release.
func (r *release) writeArchive(name string, files []file) error {
	content, err := archive(files, r.date)
	if err != nil {
		return err
	}
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	if _, err := w.Write(content); err != nil {
		return fmt.Errorf("compress %s: %w", name, err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("compress %s: %w", name, err)
	}
	return r.write(name, compressed.Bytes())
}

func (r *release) write(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(r.out, name), content, 0o600); err != nil { //nolint:gosec // the names are this program's own
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// tree returns the files below a folder, in order. It follows links, so that an archive has their contents.
func tree(dir, prefix string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", prefix, err)
	}
	var files []file
	for _, entry := range entries {
		from, name := filepath.Join(dir, entry.Name()), path.Join(prefix, entry.Name())
		info, err := os.Stat(from)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if info.IsDir() {
			below, err := tree(from, name)
			if err != nil {
				return nil, err
			}
			files = append(files, below...)
			continue
		}
		content, err := os.ReadFile(from)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		files = append(files, file{name, 0o644, content})
	}
	return files, nil
}

// checksumsFile has the SHA-256 of every other file of the release.
const checksumsFile = "checksums.txt"

// writeChecksums writes the checksums as sha256sum checks them.
func (r *release) writeChecksums() error {
	var lines []string
	err := filepath.WalkDir(r.out, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		sum, err := checksum(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(r.out, path)
		if err != nil {
			return fmt.Errorf("name %s: %w", path, err)
		}
		lines = append(lines, sum+"  "+filepath.ToSlash(name)+"\n")
		return nil
	})
	if err != nil {
		return fmt.Errorf("compute the checksums: %w", err)
	}
	slices.Sort(lines)
	return r.write(checksumsFile, []byte(strings.Join(lines, "")))
}

func checksum(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(content)), nil
}

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
	// The chart is an archive of its own, and Go files are no manifests.
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
	// Without a pin, the manifests would silently use an image of another name.
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
	// A changed default would silently leave the file as it is.
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
