// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"

	"google.golang.org/grpc/credentials"
	"k8s.io/apiserver/pkg/authentication/user"
)

// ownUser is the user of calls by this process's own account: over a unix socket, or by the host that launched it.
func ownUser(context.Context) user.Info {
	return &user.DefaultInfo{Name: "unix:" + strconv.Itoa(os.Getuid())}
}

// peerCredentials admit connections of this process's own account and of root to a unix socket, whatever its mode.
type peerCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (c peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	uid, known, err := peerUID(conn)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("read the peer of the unix socket: %w", err)
	case known && uid != 0 && uid != os.Getuid():
		return nil, nil, fmt.Errorf("uid %d may not use the unix socket of uid %d", uid, os.Getuid())
	}
	return c.TransportCredentials.ServerHandshake(conn) //nolint:wrapcheck // it does nothing
}

// Clone implements credentials.TransportCredentials.
func (c peerCredentials) Clone() credentials.TransportCredentials {
	return peerCredentials{c.TransportCredentials.Clone()}
}
