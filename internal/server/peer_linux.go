// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peerUID returns the user id of the process at the other end of a unix socket, when it connected.
func peerUID(conn net.Conn) (uid int, known bool, err error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, false, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, false, fmt.Errorf("SO_PEERCRED: %w", err)
	}
	return int(peer.Uid), true, nil
}
