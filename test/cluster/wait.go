// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

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
