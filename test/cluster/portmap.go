package cluster

// portMap has the port of each listener, which stays the same across restarts of a component.
type portMap struct {
	etcd, etcdPeer, apiServer, controllerManager, scheduler, kwok, lwsWebhook, lwsHealth, gateway, argoHealth, argoMetrics,
	kruiseHealth, kruiseWebhook int
}

const portCount = 13

func newPortMap(p []int) portMap {
	return portMap{
		etcd: p[0], etcdPeer: p[1], apiServer: p[2], controllerManager: p[3],
		scheduler: p[4], kwok: p[5], lwsWebhook: p[6], lwsHealth: p[7], gateway: p[8], argoHealth: p[9], argoMetrics: p[10],
		kruiseHealth: p[11], kruiseWebhook: p[12],
	}
}
