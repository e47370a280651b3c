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

func listen(ctx context.Context, e endpoint.Endpoint) (net.Listener, error) {
	if isUnix(e) {
		return listenUnix(ctx, e.Address)
	}
	var config net.ListenConfig
	return config.Listen(ctx, e.Network, e.Address)
}

// listenUnix creates a socket that only this user can ever connect to: it creates the socket in a private directory, restricts
// its mode, and renames it to path. That replaces the socket of a dead server, but not that of a live one, nor another file.
// Of servers that start concurrently one succeeds.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := checkUnused(ctx, path); err != nil {
		return nil, err
	}
	private, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(private) }()
	listener, err := bindPrivate(ctx, filepath.Join(private, "s"))
	if err != nil {
		return nil, err
	}
	if err := os.Rename(filepath.Join(private, "s"), path); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return newUnixListener(listener, path)
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

func bindPrivate(ctx context.Context, path string) (*net.UnixListener, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	listener, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listener is a %T", l), l.Close())
	}
	// It is renamed after this.
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// checkUnused returns an error unless path is free or the socket of a dead server.
func checkUnused(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	dialer := net.Dialer{Timeout: probeTimeout}
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return errors.Join(ErrInUse, conn.Close())
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	default:
		return fmt.Errorf("check for another server: %w", err)
	}
}

// unixListener has the socket's final name, and removes the socket on Close if it is still its own.
type unixListener struct {
	*net.UnixListener

	path string
	own  fs.FileInfo
}

func newUnixListener(l *net.UnixListener, path string) (*unixListener, error) {
	own, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &unixListener{UnixListener: l, path: path, own: own}, nil
}

// Addr returns the final name.
func (l *unixListener) Addr() net.Addr {
	return &net.UnixAddr{Net: "unix", Name: l.path}
}

// Close stops listening, and removes the socket unless another server has replaced it or is about to.
func (l *unixListener) Close() error {
	err := l.UnixListener.Close()
	unlock, lockErr := lockDir(context.Background(), filepath.Dir(l.path))
	if lockErr != nil {
		return err // the next server replaces the socket
	}
	defer unlock()
	if now, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(now, l.own) {
		_ = os.Remove(l.path)
	}
	return err
}
