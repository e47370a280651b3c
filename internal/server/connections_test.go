// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"testing"
	"time"
)

func TestConnectionsAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limitConnections(inner, 1)
	accepted := make(chan net.Conn, 2)
	go func() {
		defer close(accepted)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	for range 2 {
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
	}
	first := <-accepted
	select {
	case <-accepted:
		_ = l.Close()
		t.Fatal("the second connection is served beside the first")
	case <-time.After(200 * time.Millisecond):
	}
	_ = first.Close()
	if second := <-accepted; second != nil {
		_ = second.Close()
	}
	_ = l.Close()
	for range accepted {
		continue // until Accept has returned
	}
}
