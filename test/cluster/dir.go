// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

const (
	dirPrefix = "lockstep-cluster-"
	// ownerLock is locked while the owner of a cluster's directory lives.
	ownerLock = "owner.lock"
	// abandonedAfter is how long the directory of a killed process is kept for its logs.
	abandonedAfter = 24 * time.Hour
)

// makeDir returns the absolute path of an empty directory, a temporary one if dir is "", and the lock of its owner.
func makeDir(dir string) (string, io.Closer, error) {
	if dir == "" {
		sweep(os.TempDir(), time.Now())
		dir, err := os.MkdirTemp("", dirPrefix)
		if err != nil {
			return "", nil, fmt.Errorf("create cluster directory: %w", err)
		}
		return own(dir)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, fmt.Errorf("find cluster directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("create cluster directory: %w", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return "", nil, fmt.Errorf("cluster directory %s must be empty: %w", dir, errors.Join(err, os.ErrExist))
	}
	return own(dir)
}

// own locks a directory.
func own(dir string) (string, io.Closer, error) {
	f, err := os.OpenFile(filepath.Join(dir, ownerLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("lock cluster directory: %w", err)
	}
	if _, err := tryLock(f); err != nil {
		_ = f.Close()
		return "", nil, fmt.Errorf("lock cluster directory: %w", err)
	}
	return dir, f, nil
}

// sweep removes temporary directories of processes that were killed a day ago or earlier. It ignores errors: the next sweep tries
// again.
func sweep(temporary string, now time.Time) {
	locks, err := filepath.Glob(filepath.Join(temporary, dirPrefix+"*", ownerLock))
	if err != nil {
		return
	}
	for _, path := range locks {
		if info, err := os.Stat(path); err != nil || now.Sub(info.ModTime()) < abandonedAfter {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if free, err := tryLock(f); free && err == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		_ = f.Close()
	}
}

func (c *Cluster) removeDir() {
	c.mu.Lock()
	keep := c.keep
	c.mu.Unlock()
	if keep {
		c.logf("stopped; logs are in %s", filepath.Join(c.dir, "log"))
		return
	}
	if err := os.RemoveAll(c.dir); err != nil {
		c.logf("remove directory: %v", err)
	}
}
