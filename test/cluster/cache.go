// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// CacheEnv is the environment variable with the cache directory of built programs.
const CacheEnv = "LOCKSTEP_CLUSTER_CACHE"

// cacheRoot returns the cache directory, outside any work tree.
func cacheRoot() (string, error) {
	if dir := os.Getenv(CacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory (set %s instead): %w", CacheEnv, err)
	}
	return filepath.Join(dir, "lockstep", "cluster"), nil
}

// platform is the input of a build beside the sources.
type platform struct {
	goVersion, goos, goarch string
}

func hostPlatform() platform {
	return platform{goVersion: runtime.Version(), goos: runtime.GOOS, goarch: runtime.GOARCH}
}

// cacheKey identifies a build: the same key means the same programs. It depends on the module's files, the platform and the build
// flags.
func (m module) cacheKey(dir string, p platform) (string, error) {
	h := sha256.New()
	for _, name := range m.sources() {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("read %s of module %s: %w", name, m.name, err)
		}
		_, _ = fmt.Fprintf(h, "%s %d\n%s", name, len(content), content)
	}
	_, _ = fmt.Fprintf(h, "%q %q %q %q %q\n", p, m.programs, m.ldflags, m.manifests, m.trims)
	if m.tags != "" {
		_, _ = fmt.Fprintf(h, "%q\n", m.tags)
	}
	for _, d := range m.downloads {
		_, _ = fmt.Fprintf(h, "%q %q\n", d.name, d.sum)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// build is a finished build in the cache.
type build struct {
	dir string
}

// program returns the path of a binary.
func (b build) program(name string) string { return filepath.Join(b.dir, "bin", name) }

// manifests returns the path of a copied directory of a dependency, e.g. "config/webhook".
func (b build) manifests(folder string) string { return filepath.Join(b.dir, "manifests", folder) }

// reportProgress writes a line every few seconds until the result is called.
func reportProgress(log io.Writer, what func() string) (done func()) {
	start, stop, stopped := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		wait := 2 * time.Second
		for {
			select {
			case <-stop:
				if wait > 2*time.Second {
					_, _ = fmt.Fprintf(log, "cluster: %s: done in %s\n", what(), time.Since(start).Round(time.Second))
				}
				return
			case <-time.After(wait):
				_, _ = fmt.Fprintf(log, "cluster: %s: %s\n", what(), time.Since(start).Round(time.Second))
				wait = 15 * time.Second
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// lockFile locks the file at path.
func lockFile(ctx context.Context, path string, log io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("create cache directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	defer reportProgress(log, func() string { return "wait for another process that builds (lock " + path + ")" })()
	for {
		if locked, err := tryLock(f); locked {
			return func() { _ = f.Close() }, nil
		} else if err != nil {
			_ = f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for lock %s: %w", path, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
