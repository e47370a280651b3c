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

	"github.com/lockstep-rollouts/lockstep/internal/endpoint"
)

// probeTimeout is how long a server on an existing socket may take to accept.
const probeTimeout = time.Second

// ErrInUse is wrapped by New's error when another server answers on the socket.
var ErrInUse = errors.New("another server answers there")

func listen(ctx context.Context, e endpoint.Endpoint) (net.Listener, error) {
	if e.Network == "unix" {
		return listenUnix(ctx, e.Address)
	}
	var config net.ListenConfig
	return config.Listen(ctx, e.Network, e.Address)
}

// listenUnix makes a socket that only this user can connect to, at any moment: it is made in a private directory,
// restricted, and then renamed to path, which also replaces a socket that a dead server left. A socket on which
// somebody answers, and a file that is no socket, are left alone. Of servers that start at the same moment one gets it.
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

// makeDir makes the socket's directory if it is missing. One in which another user could put a socket of their own in
// place of this one is refused: the default is under the temporary directory for some, where anybody can be first.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The directory may be a link, whose owner could have it lead elsewhere.
	for _, look := range []func(string) (fs.FileInfo, error){os.Lstat, os.Stat} {
		info, err := look(dir)
		switch {
		case err != nil:
			return err
		case othersOwn(info):
			return fmt.Errorf("directory %s belongs to another user, who could replace the socket: use one of your own", dir)
		case info.IsDir() && othersWrite(info):
			return fmt.Errorf("everybody can write in directory %s and could replace the socket: use one of your own, or chmod o-w it", dir)
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
	// The name it was bound to is not the name it will have.
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// checkUnused returns an error unless path is free or a socket on which nobody answers.
func checkUnused(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is no socket", path)
	}
	dialer := net.Dialer{Timeout: probeTimeout}
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return errors.Join(ErrInUse, conn.Close())
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	default:
		return fmt.Errorf("find out whether a server answers: %w", err)
	}
}

// unixListener knows the socket by its final name and removes it at the end, if it is still its own.
type unixListener struct {
	*net.UnixListener

	path string
	made fs.FileInfo
}

func newUnixListener(l *net.UnixListener, path string) (*unixListener, error) {
	made, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &unixListener{UnixListener: l, path: path, made: made}, nil
}

// Addr is the final name.
func (l *unixListener) Addr() net.Addr {
	return &net.UnixAddr{Net: "unix", Name: l.path}
}

// Close stops listening and removes the socket, unless another server has replaced it or is about to.
func (l *unixListener) Close() error {
	err := l.UnixListener.Close()
	unlock, lockErr := lockDir(context.Background(), filepath.Dir(l.path))
	if lockErr != nil {
		return err // a dead socket is left behind, which the next server replaces
	}
	defer unlock()
	if now, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(now, l.made) {
		_ = os.Remove(l.path)
	}
	return err
}
