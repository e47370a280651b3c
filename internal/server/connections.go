// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"net"
	"sync"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// maxStrangers bounds the connections without an authenticated caller. A new one replaces the oldest of the address with the most, so
	// that no client can lock out another, nor the kubelet's probes.
	maxStrangers = 256
	// maxHTTPConnections is that of connections without TLS, such as those of probes, which cost less.
	maxHTTPConnections = 1024
	// strangerTimeout closes connections without an authenticated caller. None is replaced before strangerGrace: new ones wait.
	strangerTimeout, strangerGrace = 30 * time.Second, 500 * time.Millisecond
	// maxConnections bounds the other connections, and maxUserConnections those of one user.
	maxConnections, maxUserConnections = 768, 128
	// refusalPause is how long a connection with an invalid token may try no other one.
	refusalPause = time.Second
)

// connections is a TCP listener with bounded connections.
type connections struct {
	net.Listener

	// strangers bounds the connections without an authenticated caller.
	strangers int
	// patience is how long a connection without an authenticated caller may stay. 0: for ever.
	patience time.Duration

	mu   sync.Mutex
	open map[string]*connection // by the peer's address
}

// connection is under the lock of its listener.
type connection struct {
	net.Conn

	by     *connections
	source string
	opened time.Time
	late   *time.Timer // nil if it may stay
	// user is the first who authenticated, "" before one has.
	user string
	// refused is true once a call was refused. The connection gives way before others of its address.
	refused bool
	// reviewing is the token that is being reviewed, and noReview until when no other one is.
	reviewing string
	noReview  time.Time
}

func limitConnections(l net.Listener, strangers int, patience time.Duration) *connections {
	return &connections{Listener: l, strangers: strangers, patience: patience, open: map[string]*connection{}}
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the listener's own
	}
	if _, ok := conn.(*net.TCPConn); !ok {
		return conn, nil // only one user can connect, and the peer's uid must stay readable
	}
	added := &connection{Conn: conn, by: c, source: host(conn.RemoteAddr()), opened: time.Now()}
	c.mu.Lock()
	if c.patience > 0 {
		added.late = time.AfterFunc(c.patience, func() { _ = added.Close() })
	}
	oldest := c.oldestStranger()
	c.open[conn.RemoteAddr().String()] = added
	c.mu.Unlock()
	if oldest != nil {
		if c.patience > 0 {
			<-time.After(strangerGrace - time.Since(oldest.opened))
		}
		c.replace(oldest)
	}
	return added, nil
}

// replace closes a connection unless its caller has been authenticated meanwhile.
func (c *connections) replace(oldest *connection) {
	c.mu.Lock()
	stranger := oldest.user == ""
	c.mu.Unlock()
	if stranger {
		_ = oldest.Close()
	}
}

// oldestStranger returns the connection to replace, nil if there is room.
func (c *connections) oldestStranger() (oldest *connection) {
	total, of := 0, map[string]int{}
	for _, conn := range c.open {
		if conn.user == "" {
			total++
			of[conn.source]++
		}
	}
	if total < c.strangers {
		return nil
	}
	for _, conn := range c.open {
		if conn.user == "" && (oldest == nil || cmp.Or(of[oldest.source]-of[conn.source], conn.order(oldest)) < 0) {
			oldest = conn
		}
	}
	return oldest
}

// order is negative if a connection gives way before another one of its address.
func (c *connection) order(other *connection) int {
	if c.refused != other.refused {
		if c.refused {
			return -1
		}
		return 1
	}
	return c.opened.Compare(other.opened)
}

// refuse notes that a call was refused.
func (c *connections) refuse(peer net.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.open[peer.String()]; conn != nil {
		conn.refused = true
	}
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.by.mu.Lock()
	c.stay()
	if key := c.RemoteAddr().String(); c.by.open[key] == c {
		delete(c.by.open, key)
	}
	c.by.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // the connection's own
}

// known keeps the connection of an authenticated user. It returns an error if there are too many.
func (c *connections) known(peer net.Addr, user string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.open[peer.String()]
	if conn == nil || conn.user != "" {
		return nil
	}
	all, theirs := 0, 0
	for _, other := range c.open {
		if other.user != "" {
			all++
		}
		if other.user == user {
			theirs++
		}
	}
	if all >= maxConnections || theirs >= maxUserConnections {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RATE_LIMITED,
			"user %q has %d connections, and all users %d: use one connection for many calls", user, theirs, all)
	}
	conn.user = user
	conn.stay()
	return nil
}

// stay ends the patience with a connection.
func (c *connection) stay() {
	if c.late != nil {
		c.late.Stop()
	}
}

// review reports whether a token from this connection may be reviewed now: one at a time.
func (c *connections) review(peer net.Addr, token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.open[peer.String()]
	if conn == nil || conn.reviewing == token {
		return true
	}
	if conn.reviewing != "" || time.Now().Before(conn.noReview) {
		return false
	}
	conn.reviewing = token
	return true
}

// reviewed ends a review.
func (c *connections) reviewed(peer net.Addr, valid bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.open[peer.String()]
	if conn == nil {
		return
	}
	if conn.reviewing = ""; !valid {
		conn.refused = true
		conn.noReview = time.Now().Add(refusalPause)
	}
}

// abandon ends a review whose call has ended.
func (c *connections) abandon(peer net.Addr, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.open[peer.String()]; conn != nil && token != "" && conn.reviewing == token {
		conn.reviewing = ""
	}
}

// host returns the address of a peer without its port.
func host(peer net.Addr) string {
	name, _, err := net.SplitHostPort(peer.String())
	if err != nil {
		return peer.String()
	}
	return name
}
