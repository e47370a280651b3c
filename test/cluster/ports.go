// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are below the kernel's range for outgoing connections (32768 and up on Linux), so that no client takes a port between its
// choice and the listen call.
const (
	firstPort = 20000
	lastPort  = 29999
)

// ports reserves ports that no other cluster on this machine has, even while their program is stopped.
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

// release releases all ports.
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

// address returns host and port of a program of the cluster.
func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portMap has the port of each listener, which stays the same across restarts of a component.
type portMap struct {
	etcd, etcdPeer, apiServer, controllerManager, scheduler, kwok, lwsWebhook, lwsHealth, gateway, argoHealth, argoMetrics,
	kruiseHealth, kruiseWebhook, registry, proxyHealth, dnsReady, kueueHealth, kueueWebhook int
	// kubelets has two ports per node.
	kubelets []int
}

const portCount = 18

func newPortMap(p []int) portMap {
	return portMap{
		etcd: p[0], etcdPeer: p[1], apiServer: p[2], controllerManager: p[3],
		scheduler: p[4], kwok: p[5], lwsWebhook: p[6], lwsHealth: p[7], gateway: p[8], argoHealth: p[9], argoMetrics: p[10],
		kruiseHealth: p[11], kruiseWebhook: p[12], registry: p[13], proxyHealth: p[14], dnsReady: p[15],
		kueueHealth: p[16], kueueWebhook: p[17], kubelets: p[portCount:],
	}
}
