// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
)

// probeTimeout bounds the wait for a server on an existing socket to accept.
const probeTimeout = time.Second

// ErrInUse is wrapped by New's error if another server listens on the socket.
var ErrInUse = errors.New("another server listens on the socket")

func listenAt(ctx context.Context, e endpoint.Endpoint) (net.Listener, error) {
	var config net.ListenConfig
	if !isUnix(e) {
		return config.Listen(ctx, e.Network, e.Address)
	}
	return listenUnix(ctx, &config, e.Address)
}

// listenUnix creates a socket that only this user can ever connect to. It replaces the socket of a dead server, but not that of a live
// one, nor another file. Of servers that start concurrently one succeeds. The listener removes its socket before it stops to listen, so
// that it never removes that of the next server.
func listenUnix(ctx context.Context, config *net.ListenConfig, path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	// Between the check for a dead server and the bind, another process could bind its own socket.
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeUnused(ctx, path); err != nil {
		return nil, err
	}
	// A socket is usable from its bind on, so its mode must be narrow before the Chmod below.
	listener, err := withPrivateUmask(func() (net.Listener, error) { return config.Listen(ctx, "unix", path) })
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// makeDir creates the socket's directory if it is missing. It refuses one in which another user can replace the socket: the
// default may be under the temporary directory, where any user can create it first.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The directory may be a link, which its owner can change.
	for _, stat := range []func(string) (fs.FileInfo, error){os.Lstat, os.Stat} {
		info, err := stat(dir)
		switch {
		case err != nil:
			return err
		case ownedByOther(info):
			return fmt.Errorf("directory %s belongs to another user, who could replace the socket: use one of your own", dir)
		case info.IsDir() && worldWritable(info):
			return fmt.Errorf("directory %s is world-writable, so any user could replace the socket: use one of your own, or chmod o-w it", dir)
		}
	}
	return nil
}

// removeUnused removes the socket of a dead server. It returns an error unless path is free then.
func removeUnused(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// A mistyped path must not delete a user's file.
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	dialer := net.Dialer{Timeout: probeTimeout}
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return errors.Join(ErrInUse, conn.Close())
	case errors.Is(err, fs.ErrNotExist):
		// The server removed its socket while it stopped.
		return nil
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	default:
		// Any other error, such as a full backlog, may be a live server's.
		return fmt.Errorf("check for another server: %w", err)
	}
}
