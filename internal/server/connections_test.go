// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic/fair"
)

// accepting returns a listener, and how to connect to it: with the client's connection and the server's.
func accepting(t *testing.T) (*connections, func() (client, served net.Conn)) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := limitConnections(inner, maxStrangers, strangerTimeout)
	t.Cleanup(func() { _ = l.Close() })
	return l, func() (client, served net.Conn) {
		t.Helper()
		client = speaking(t, inner.Addr())
		served, err = l.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = client.Close(), served.Close() })
		return client, served
	}
}

// speaking returns a connection whose client has sent something.
func speaking(t *testing.T, to net.Addr) net.Conn {
	t.Helper()
	client, err := net.Dial("tcp", to.String())
	if err == nil {
		_, err = client.Write([]byte("hi"))
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
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
	require.NoError(t, l.keepAuthenticated(known.RemoteAddr(), "ada"))
	oldest, _ := connect()
	for range maxStrangers - 1 {
		connect()
	}
	open := func() map[string]*connection {
		l.mu.Lock()
		defer l.mu.Unlock()
		return maps.Clone(l.open)
	}
	require.Len(t, open(), maxStrangers+1, "connections are open")
	newest, _ := connect()
	assert.True(t, closed(oldest), "the oldest connection is open")
	if got := open(); got[known.RemoteAddr().String()] == nil || got[newest.LocalAddr().String()] == nil || len(got) != maxStrangers+1 {
		t.Errorf("of %d connections, the known or the newest one was closed", len(got))
	}
}

func TestConnectionsOfOneUserAreBounded(t *testing.T) {
	l, connect := accepting(t)
	for range maxUserConnections {
		_, served := connect()
		require.NoError(t, l.keepAuthenticated(served.RemoteAddr(), "ada"))
	}
	_, served := connect()
	err := l.keepAuthenticated(served.RemoteAddr(), "ada")
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_RATE_LIMITED, drivererr.Reason(err), "one more of the user: %v", err)
	assert.NoError(t, l.keepAuthenticated(served.RemoteAddr(), "bob"), "one of another user")
}

// A few users with all the connections that they can have leave some to others.
func TestUsersLeaveConnections(t *testing.T) {
	l := &connections{open: map[string]*connection{}}
	keep := func(user string) error {
		peer := &net.TCPAddr{Port: len(l.open)}
		l.open[peer.String()] = &connection{}
		return l.keepAuthenticated(peer, user)
	}
	for i := range maxConnections / maxUserConnections {
		for err := error(nil); err == nil; {
			err = keep(fmt.Sprint("loud-", i))
		}
	}
	for range 5 {
		require.NoError(t, keep("ada"))
	}
}

// The address with the most connections gives way: to others at once, to itself once its connections have had their time.
func TestLoudestAddressGivesWay(t *testing.T) {
	l, connect := accepting(t)
	for range maxStrangers {
		connect()
	}
	all := func(source string, opened time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, conn := range l.open {
			conn.source, conn.opened = source, opened
		}
	}
	all("192.0.2.1", time.Now().Add(time.Hour))
	connect() // of another address: it does not wait for an hour

	all("127.0.0.1", time.Now().Add(time.Hour))
	louder := speaking(t, l.Addr())
	await.True(t, "the connection waits", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.waiting.Len() == 1
	})
	all("127.0.0.1", time.Now().Add(-strangerGrace))
	go l.serveWaiting() // as after the hour
	served, err := l.Accept()
	assert.True(t, err == nil && served.RemoteAddr().String() == louder.LocalAddr().String(), "%v is served: %v", served, err)
}

// Silent connections are not served, and one that speaks passes them all.
func TestSilentConnectionsGiveWay(t *testing.T) {
	l, connect := accepting(t)
	var silent []net.Conn
	for range maxWaiting + 1 {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		silent = append(silent, conn)
	}
	client, served := connect()
	got := served.RemoteAddr().String()
	assert.Equal(t, client.LocalAddr().String(), got, "%s is served, and it is silent", got)
	if got, err := io.ReadAll(io.LimitReader(served, 2)); string(got) != "hi" {
		t.Errorf("it has sent %q: %v", got, err)
	}
	assert.True(t, closed(silent[0]), "the oldest silent connection is open")
}

// A connection whose call was refused gives way before older ones.
func TestRefusedGivesWay(t *testing.T) {
	l, connect := accepting(t)
	for range maxStrangers - 1 {
		connect()
	}
	refused, served := connect()
	l.markRefused(served.RemoteAddr())
	connect()
	assert.True(t, closed(refused), "an older connection was closed")
}

func TestSlots(t *testing.T) {
	s := fair.NewSlots(3)
	limited := func(key string) bool {
		_, err := take(s, key, 2)
		return drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_RATE_LIMITED
	}
	release, err := take(s, "ada", 2)
	require.True(t, err == nil && !limited("ada") && limited("ada"), "want two for a key: %v", err)
	require.True(t, !limited("bob") && limited("eve"), "want three in all")
	release()
	release()
	assert.True(t, !limited("eve") && limited("bob"), "want one more after the release of one")
}

// A few keys that take what they can leave some to others.
func TestKeysLeaveSlots(t *testing.T) {
	s := fair.NewSlots(maxCalls)
	for i := range maxCalls / maxUserCalls {
		for err := error(nil); err == nil; {
			_, err = take(s, fmt.Sprint("loud-", i), maxUserCalls)
		}
	}
	for range 10 {
		_, err := take(s, "ada", maxUserCalls)
		require.NoError(t, err)
	}
}

func TestWithin(t *testing.T) {
	late, failed := errors.New("late"), errors.New("failed")
	never := make(chan error)
	assert.ErrorIs(t, callWithin(time.Millisecond, func() error { return <-never }, func() error { return late }), late, "a call without an end")
	close(never)
	assert.ErrorIs(t, callWithin(time.Minute, func() error { return failed }, func() error { return late }), failed, "a call that fails")
}

// One of many calls that fail alike is logged.
func TestRefusalsAreSampled(t *testing.T) {
	var log bytes.Buffer
	s := &sampler{logger: slog.New(slog.NewTextHandler(&log, nil))}
	for range 50 {
		s.logRefused(t.Context(), pb.WorkloadDriver_Adopt_FullMethodName, errInvalidToken)
		s.logRefused(t.Context(), "/unheard/Of", errInvalidToken)
	}
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Fatalf("%d lines, want one for each method:\n%s", n, log.String())
	}
}
