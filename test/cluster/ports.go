package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range the kernel uses for outgoing connections (32768 and up on Linux), so that no
// client's source port can come between choosing a port and listening on it.
const (
	firstPort = 20000
	lastPort  = 29999
)

// ports hands out ports that no other cluster on this machine has, also while the program behind one is stopped.
type ports struct {
	claims []net.Listener
}

// take claims n free ports.
func (p *ports) take(ctx context.Context, n int) ([]int, error) {
	var taken []int
	for _, offset := range rand.Perm(lastPort - firstPort + 1) {
		if len(taken) == n {
			return taken, nil
		}
		port := firstPort + offset
		claim, err := claimPort(ctx, port)
		if err != nil {
			continue
		}
		if !listenable(ctx, port) {
			_ = claim.Close()
			continue
		}
		p.claims = append(p.claims, claim)
		taken = append(taken, port)
	}
	return nil, fmt.Errorf("find %d free ports between %d and %d", n, firstPort, lastPort)
}

// release gives all ports back.
func (p *ports) release() {
	for _, claim := range p.claims {
		_ = claim.Close()
	}
	p.claims = nil
}

func listenable(ctx context.Context, port int) bool {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// address is host and port of a program of the cluster.
func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
