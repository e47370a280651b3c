// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic/fair"
)

const (
	// maxStrangers bounds the connections without an authenticated caller. A new one replaces the oldest of the address with the most, so
	// that no client can lock out another, nor the kubelet's probes.
	maxStrangers = 256
	// maxHTTPConnections is that of connections without TLS, such as those of probes, which cost less.
	maxHTTPConnections = 1024
	// strangerTimeout closes connections without an authenticated caller. Before strangerGrace they give way only to addresses with fewer: new
	// ones of theirs wait, up to maxWaiting, in which they cost a socket. As many more may have sent nothing yet: the oldest of them gives way.
	strangerTimeout, strangerGrace, maxWaiting = 30 * time.Second, 500 * time.Millisecond, 4096
	// maxConnections bounds the other connections, and maxUserConnections those of one user, as access.AccountOf counts them.
	maxConnections, maxUserConnections = 768, 128
)

// connections is a TCP listener with bounded connections. Those of an address that has the most wait for each other, and hold up no other one.
type connections struct {
	net.Listener

	// strangers bounds the connections without an authenticated caller.
	strangers int
	// patience is how long a connection without an authenticated caller may stay. 0: for ever.
	patience time.Duration
	// accepted has what Accept returns, until done is closed.
	accepted chan accepted
	done     chan struct{}
	end      sync.Once

	mu   sync.Mutex
	open map[string]*connection // by the peer's address
	// silent are connections whose client has sent nothing. All protocols begin with the client.
	silent fair.Queue[*connection]
	// waiting are connections that are not served yet. retries is true if a timer will look again.
	waiting fair.Queue[*connection]
	retries bool
}

type accepted struct {
	conn net.Conn
	err  error
}

// connection is under the lock of its listener.
type connection struct {
	net.Conn

	by     *connections
	source string
	first  []byte // what was read of it before it was served
	opened time.Time
	late   *time.Timer   // nil if it may stay
	gone   chan struct{} // closed with it
	// user is the first who authenticated, "" before one has.
	user string
	// refused is true once a call was refused. The connection gives way before others of its address.
	refused bool
}

func limitConnections(l net.Listener, strangers int, patience time.Duration) *connections {
	c := &connections{
		Listener: l, strangers: strangers, patience: patience, open: map[string]*connection{},
		accepted: make(chan accepted), done: make(chan struct{}),
	}
	go c.accept()
	return c
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	select {
	case a := <-c.accepted:
		return a.conn, a.err
	case <-c.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Connections that Accept has returned stay open.
func (c *connections) Close() error {
	// Accept stops first, so no connection is served after this loop.
	c.end.Do(func() { close(c.done) })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range []*fair.Queue[*connection]{&c.silent, &c.waiting} {
		for q.Len() > 0 {
			_ = q.Pop().Conn.Close()
		}
	}
	return c.Listener.Close() //nolint:wrapcheck // the listener's own
}

// accept reads the listener until it is closed.
func (c *connections) accept() {
	for {
		conn, err := c.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if _, ok := conn.(*net.TCPConn); !ok { // a Unix socket is one user's
			c.serve(accepted{conn, err})
			continue
		}
		added := &connection{Conn: conn, by: c, source: peerHost(conn.RemoteAddr()), first: make([]byte, 1), gone: make(chan struct{})}
		c.mu.Lock()
		// The oldest silent connection gives way, so a flood of them locks out none that sends.
		if c.silent.Push("", added); c.silent.Len() > maxWaiting {
			_ = c.silent.Pop().Conn.Close()
		}
		c.mu.Unlock()
		// A silent client must not hold up the others.
		go c.awaitFirstByte(added)
	}
}

// awaitFirstByte admits a connection, or has it wait, once its client has sent something.
func (c *connections) awaitFirstByte(added *connection) {
	// Without this deadline a client that sends nothing would keep a socket for good.
	_ = added.SetReadDeadline(time.Now().Add(handshakeTimeout))
	_, err := added.Conn.Read(added.first)
	_ = added.SetReadDeadline(time.Time{})
	c.mu.Lock()
	// Close or a newer connection may have removed it while its client was silent.
	if !c.silent.Remove("", added) || err != nil {
		c.mu.Unlock()
		_ = added.Conn.Close()
		return
	}
	// A connection must not overtake those that already wait.
	ready, _ := c.admit(added, c.waiting.Len() > 0)
	full := !ready && c.waiting.Len() >= maxWaiting
	if !ready && !full {
		c.waiting.Push(added.source, added)
	}
	c.mu.Unlock()
	switch {
	case ready:
		c.serve(accepted{conn: added})
	case full:
		_ = added.Conn.Close()
	default:
		c.serveWaiting()
	}
}

// serve has Accept return a connection or an error.
func (c *connections) serve(a accepted) {
	select {
	case c.accepted <- a:
	case <-c.done:
		if a.conn != nil {
			_ = a.conn.Close()
		}
	}
}

// serveWaiting serves the connections that need not wait any more, and looks again when the others need not.
func (c *connections) serveWaiting() {
	for {
		c.mu.Lock()
		added, ok := c.waiting.First()
		if !ok {
			c.mu.Unlock()
			return
		}
		ready, wait := c.admit(added, false)
		switch {
		case ready:
			// The lock is held since First, so this is the same connection.
			c.waiting.Pop()
		case !c.retries:
			c.retries = true
			time.AfterFunc(wait, func() {
				c.mu.Lock()
				c.retries = false
				c.mu.Unlock()
				c.serveWaiting()
			})
		}
		// serve may block until gRPC accepts, so the lock is released before.
		c.mu.Unlock()
		if !ready {
			return
		}
		c.serve(accepted{conn: added})
	}
}

// admit opens a connection, in place of another one if there is no room, or returns how long it has to wait for that. It does not overtake
// one that waits, unless its address has fewer than the one that gives way.
func (c *connections) admit(added *connection, behind bool) (ready bool, wait time.Duration) {
	oldest, louder := c.connectionToReplace(added.source)
	if oldest != nil {
		// During the grace a client proves who it is. Without it, other strangers would close each connection before its review.
		if wait = strangerGrace - time.Since(oldest.opened); c.patience > 0 && !louder && (behind || wait > 0) {
			return false, wait
		}
		// The replaced connection is removed here, since its Close would take the lock again.
		oldest.remove()
		_ = oldest.Conn.Close()
	}
	if added.opened = time.Now(); c.patience > 0 {
		added.late = time.AfterFunc(c.patience, func() { _ = added.Close() })
	}
	c.open[added.RemoteAddr().String()] = added
	return true, 0
}

// connectionToReplace returns the connection to replace, nil if there is room, and whether its address has more than another one with a new one.
func (c *connections) connectionToReplace(source string) (oldest *connection, louder bool) {
	// The new connection counts too, so that an address gives way only to one that has fewer even with it.
	total, of := 0, map[string]int{source: 1}
	for _, conn := range c.open {
		if conn.user == "" {
			total++
			of[conn.source]++
		}
	}
	if total < c.strangers {
		return nil, false
	}
	for _, conn := range c.open {
		// The address with the most gives way, and of its connections a refused one or the oldest.
		if conn.user == "" && (oldest == nil || cmp.Or(of[oldest.source]-of[conn.source], conn.compareForRemoval(oldest)) < 0) {
			oldest = conn
		}
	}
	return oldest, of[oldest.source] > of[source]
}

// compareForRemoval returns a negative number if the connection gives way before another one of its address.
func (c *connection) compareForRemoval(other *connection) int {
	if c.refused != other.refused {
		if c.refused {
			return -1
		}
		return 1
	}
	return c.opened.Compare(other.opened)
}

// of returns the open connection of a peer, or nil.
func (c *connections) of(peer net.Addr) *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[peer.String()]
}

// markRefused notes that a call was refused.
func (c *connections) markRefused(peer net.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.open[peer.String()]; conn != nil {
		conn.refused = true
	}
}

// Read implements net.Conn.
func (c *connection) Read(p []byte) (int, error) {
	if n := copy(p, c.first); n > 0 {
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p) //nolint:wrapcheck // the connection's own
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.by.mu.Lock()
	c.remove()
	c.by.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // the connection's own
}

// remove deletes the connection from the open ones.
func (c *connection) remove() {
	c.stopTimeout()
	// A later connection may have the same address and port.
	if key := c.RemoteAddr().String(); c.by.open[key] == c {
		delete(c.by.open, key)
		close(c.gone)
	}
}

// keepAuthenticated keeps the connection of an authenticated user. It returns an error if there are too many.
func (c *connections) keepAuthenticated(peer net.Addr, user string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.open[peer.String()]
	// gRPC calls this for each call, but the connection counts for its first user only.
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
	// As with slots, a few users leave some to others.
	if theirs >= min(maxUserConnections, maxConnections-all) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RATE_LIMITED,
			"user %q has %d connections, and all users %d: use one connection for many calls", user, theirs, all)
	}
	conn.user = user
	conn.stopTimeout()
	return nil
}

// stopTimeout lets the connection stay until its client closes it.
func (c *connection) stopTimeout() {
	if c.late != nil {
		c.late.Stop()
	}
}

// peerHost returns the address of a peer without its port.
func peerHost(peer net.Addr) string {
	name, _, err := net.SplitHostPort(peer.String())
	if err != nil {
		return peer.String()
	}
	return name
}
