// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

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
