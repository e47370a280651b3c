// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
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
