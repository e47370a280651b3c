// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"crypto/x509"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
)

// Files is a value that is read from files, such as certificates, and read again after one of them has changed.
type Files[T any] struct {
	paths []string
	load  func() (T, error)

	mu     sync.Mutex
	value  T
	stamps []stamp
}

// stamp is how a change of a file is noticed. A link is followed: Kubernetes renews a mounted Secret by moving a link.
type stamp struct {
	modified int64 // nanoseconds
	size     int64
	mode     fs.FileMode
}

// NewFiles reads the value for the first time.
func NewFiles[T any](load func() (T, error), paths ...string) (*Files[T], error) {
	f := &Files[T]{paths: paths, load: load}
	// The stamps are taken first, so that the next Get notices a change during the read.
	f.stamps = f.look()
	value, err := load()
	f.value = value
	return f, err
}

// Get returns the value. While changed files can't be read it is the last one, and each call tries again: of a pair, one file may
// not be written yet.
func (f *Files[T]) Get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.look()
	if slices.Equal(now, f.stamps) {
		return f.value
	}
	if value, err := f.load(); err == nil {
		f.value, f.stamps = value, now
	}
	return f.value
}

func (f *Files[T]) look() []stamp {
	all := make([]stamp, len(f.paths))
	for i, path := range f.paths {
		if info, err := os.Stat(path); err == nil {
			all[i] = stamp{info.ModTime().UnixNano(), info.Size(), info.Mode()}
		}
	}
	return all
}

// ReadCA reads the certificates of a certificate authority from a PEM file.
func ReadCA(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read CA: %s holds no PEM certificate", path)
	}
	return pool, nil
}
