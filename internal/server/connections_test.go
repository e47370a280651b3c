// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"testing"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// accepting returns a listener, and how to connect to it: with the client's connection and the server's.
func accepting(t *testing.T) (*connections, func() (client, served net.Conn)) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limitConnections(inner, maxStrangers, strangerTimeout)
	t.Cleanup(func() { _ = l.Close() })
	return l, func() (client, served net.Conn) {
		t.Helper()
		client, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		served, err = l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = client.Close(), served.Close() })
		return client, served
	}
}

// closed waits until the other side has closed a connection.
func closed(conn net.Conn) bool {
	_, err := conn.Read(make([]byte, 1))
	return err != nil
}

// A new connection replaces the oldest one without an authenticated caller, and none with one.
func TestConnectionsAreBounded(t *testing.T) {
	l, connect := accepting(t)
	_, known := connect()
	if err := l.known(known.RemoteAddr(), "ada"); err != nil {
		t.Fatal(err)
	}
	oldest, _ := connect()
	for range maxStrangers - 1 {
		connect()
	}
	if len(l.open) != maxStrangers+1 {
		t.Fatalf("%d connections are open", len(l.open))
	}
	newest, _ := connect()
	if !closed(oldest) {
		t.Error("the oldest connection is open")
	}
	if l.open[known.RemoteAddr().String()] == nil || l.open[newest.LocalAddr().String()] == nil || len(l.open) != maxStrangers+1 {
		t.Errorf("of %d connections, the known or the newest one was closed", len(l.open))
	}
}

func TestConnectionsOfOneUserAreBounded(t *testing.T) {
	l, connect := accepting(t)
	for range maxUserConnections {
		_, served := connect()
		if err := l.known(served.RemoteAddr(), "ada"); err != nil {
			t.Fatal(err)
		}
	}
	_, served := connect()
	if err := l.known(served.RemoteAddr(), "ada"); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_RATE_LIMITED {
		t.Errorf("one more of the user: %v", err)
	}
	if err := l.known(served.RemoteAddr(), "bob"); err != nil {
		t.Errorf("one of another user: %v", err)
	}
}

// The address with the most connections gives way.
func TestLoudestAddressGivesWay(t *testing.T) {
	l := limitConnections(nil, maxStrangers, 0)
	add := func(source string, port int) {
		address := &net.TCPAddr{IP: net.ParseIP(source), Port: port}
		l.open[address.String()] = &connection{source: source, by: l}
	}
	add("192.0.2.1", 1)
	for port := range maxStrangers {
		add("192.0.2.2", port)
	}
	if oldest := l.oldestStranger(); oldest == nil || oldest.source != "192.0.2.2" {
		t.Errorf("%v gives way", oldest)
	}
}

// A connection whose call was refused gives way before older ones.
func TestRefusedGivesWay(t *testing.T) {
	l, connect := accepting(t)
	for range maxStrangers - 1 {
		connect()
	}
	refused, served := connect()
	l.refuse(served.RemoteAddr())
	connect()
	if !closed(refused) {
		t.Error("an older connection was closed")
	}
}

// One token of a connection is reviewed at a time, and none for a while after an invalid one.
func TestOneReviewOfAConnection(t *testing.T) {
	l, connect := accepting(t)
	_, served := connect()
	peer := served.RemoteAddr()
	first, again := l.review(peer, "a"), l.review(peer, "a")
	if !first || !again || l.review(peer, "b") {
		t.Error("another token is reviewed beside the first")
	}
	l.abandon(peer, "a")
	if !l.review(peer, "b") {
		t.Error("no review after one that was abandoned")
	}
	l.reviewed(peer, false)
	if l.review(peer, "c") {
		t.Error("a review right after an invalid token")
	}
}
