// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// trim removes files of a package of a dependency that take long to compile, with what they import, and that no test uses. The rest of the
// dependency is unmodified.
type trim struct {
	// dependency is the module's path, folder the package's directory in it, files the pattern of those that are removed.
	dependency, folder, files string
	// file comes in their place: it is in the directory trim beside the module's go.mod. Empty means none.
	file string
}

// trimmed writes a go.mod that replaces the trimmed dependencies by copies in work, and returns its path, or "" without trims.
func (m module) trimmed(ctx context.Context, source, work string, log io.Writer) (string, error) {
	if len(m.trims) == 0 {
		return "", nil
	}
	modFile := filepath.Join(work, "go.mod")
	for from, to := range map[string]string{"go.mod": modFile, "go.sum": filepath.Join(work, "go.sum")} {
		content, err := os.ReadFile(filepath.Join(source, from))
		if err != nil {
			return "", fmt.Errorf("trim %s: %w", m, err)
		}
		if err := os.WriteFile(to, content, 0o600); err != nil {
			return "", fmt.Errorf("trim %s: %w", m, err)
		}
	}
	copies := map[string]string{}
	for i, t := range m.trims {
		if copies[t.dependency] == "" {
			dir, err := moduleDir(ctx, source, t.dependency, log)
			if err != nil {
				return "", err
			}
			to := filepath.Join(work, fmt.Sprintf("copy-%d", i))
			if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
				return "", fmt.Errorf("copy %s: %w", t.dependency, err)
			}
			replace := "-replace=" + t.dependency + "=" + to
			if _, err := runGo(ctx, source, "replace "+t.dependency, log, "mod", "edit", replace, modFile); err != nil {
				return "", err
			}
			copies[t.dependency] = to
		}
		if err := t.apply(filepath.Join(source, "trim"), copies[t.dependency]); err != nil {
			return "", fmt.Errorf("trim %s: %w", t.dependency, err)
		}
	}
	return modFile, nil
}

// apply trims a copy of the dependency.
func (t trim) apply(replacements, dependency string) error {
	folder := filepath.Join(dependency, t.folder)
	files, err := filepath.Glob(filepath.Join(folder, t.files))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("package %s has no files %s to remove (%w)", t.folder, t.files, err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	if t.file == "" {
		return nil
	}
	content, err := os.ReadFile(filepath.Join(replacements, t.file))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "trimmed.go"), content, 0o600)
}

// moduleDir downloads a dependency and returns its directory in the module cache.
func moduleDir(ctx context.Context, source, dependency string, log io.Writer) (string, error) {
	out, err := runGo(ctx, source, "download "+dependency, log, "mod", "download", "-json", dependency)
	if err != nil {
		return "", err
	}
	var found struct{ Dir string }
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&found); err != nil {
		return "", fmt.Errorf("find %s: %w", dependency, err)
	}
	return found.Dir, nil
}

// sources returns the module's files that the build depends on.
func (m module) sources() []string {
	files := make([]string, 0, 2+len(m.own)+len(m.trims))
	files = append(files, "go.mod", "go.sum")
	files = append(files, m.own...)
	for _, t := range m.trims {
		if t.file != "" {
			files = append(files, filepath.Join("trim", t.file))
		}
	}
	return files
}
