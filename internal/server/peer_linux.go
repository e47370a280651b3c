// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
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
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, false, err
	}
	if failed != nil {
		return 0, false, failed
	}
	return int(peer.Uid), true, nil
}
