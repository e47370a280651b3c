// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// tokenFile is a file with a bearer token, as gRPC credentials.
type tokenFile struct {
	path string

	mu       sync.Mutex
	token    string
	modified time.Time
}

// RequireTransportSecurity keeps gRPC from sending the token in plaintext.
func (f *tokenFile) RequireTransportSecurity() bool { return true }

// GetRequestMetadata returns the token for a call.
func (f *tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := f.read()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// read returns the token in the file, or the last one while the file can't be read: it may be about to be replaced.
func (f *tokenFile) read() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	token, modified, err := f.load()
	switch {
	case err == nil:
		f.token, f.modified = token, modified
	case f.token == "":
		return "", fmt.Errorf("read token: %w", err)
	}
	return f.token, nil
}

func (f *tokenFile) load() (string, time.Time, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return "", time.Time{}, err
	}
	if f.token != "" && info.ModTime().Equal(f.modified) {
		return f.token, f.modified, nil
	}
	raw, err := os.ReadFile(f.path)
	if err != nil {
		return "", time.Time{}, err
	}
	token := strings.TrimSpace(string(raw))
	if token == "" {
		return "", time.Time{}, fmt.Errorf("%s is empty", f.path)
	}
	return token, info.ModTime(), nil
}
