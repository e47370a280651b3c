package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// component is one program of the cluster: what to build, how to install and start it, and how to know that it is ready.
// A new one (another controller, a gateway) is a new value and a module folder.
type component struct {
	name string
	// module and the program's name in it say what is built.
	module  func(Versions) module
	program string
	// install puts into the API server what the program needs. Optional. It runs before the program starts and may run
	// again when the component is started again.
	install func(context.Context, *Cluster) error
	// command writes the program's files and returns its arguments and environment. It gives the same ports every time.
	command func(*Cluster) (command, error)
	// ready returns nil once the component does its work.
	ready func(context.Context, *Cluster) error
}

type command struct {
	args, env []string
}

// Names of the components, for [Cluster.StopComponent] and its neighbours.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	LWS               = "lws"
	KWOK              = "kwok"
	Traefik           = "traefik"
	Argo              = "argo-rollouts"
	Kruise            = "kruise-rollouts"
)

const (
	// readyTimeout is how long a component may take to become ready; generous, since machines are shared.
	readyTimeout = 2 * time.Minute
	// stopGrace is how long a component may take to end before it is killed.
	stopGrace = 3 * time.Second
)

// stopOrder has the clients before the API server and etcd last: an API server whose etcd is gone hangs for a minute.
var stopOrder = [][]string{{Argo, Kruise}, {Traefik, LWS, KWOK, Scheduler, ControllerManager}, {APIServer}, {Etcd}}

// start installs and starts a component and waits until it is ready.
func (c *Cluster) start(ctx context.Context, comp component) error {
	if err := c.install(ctx, comp); err != nil {
		return err
	}
	return c.run(ctx, comp)
}

// install writes what the component needs to the API server.
func (c *Cluster) install(ctx context.Context, comp component) error {
	if comp.install == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := comp.install(ctx, c); err != nil {
		return fmt.Errorf("install %s: %w", comp.name, err)
	}
	return nil
}

// run starts a component that is installed and waits until it is ready.
func (c *Cluster) run(ctx context.Context, comp component) error {
	built, err := c.build(ctx, comp.module)
	if err != nil {
		return err
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	p, err := c.launch(comp, built)
	if err != nil {
		return err
	}
	if err := p.await(ctx, func(ctx context.Context) error { return comp.ready(ctx, c) }); err != nil {
		return err
	}
	c.logf("%s ready after %s", comp.name, time.Since(begin).Round(10*time.Millisecond))
	return nil
}

// launch starts the component's program and watches over it.
func (c *Cluster) launch(comp component, built build) (*process, error) {
	cmd, err := comp.command(c)
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", comp.name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, fmt.Errorf("start %s: %w", comp.name, ErrStopped)
	}
	if p, ok := c.running[comp.name]; ok {
		return nil, fmt.Errorf("start %s: it runs already (process %d)", comp.name, p.Cmd.Process.Pid)
	}
	logPath := filepath.Join(c.dir, "log", comp.name+".log")
	p, err := spawn(comp.name, logPath, c.dir, built.program(comp.program), cmd.args, cmd.env)
	if err != nil {
		return nil, err
	}
	c.components[comp.name] = comp
	c.running[comp.name] = p
	go c.watch(p)
	return p, nil
}

// watch notices a component that ends by itself.
func (c *Cluster) watch(p *process) {
	<-p.Exited
	if !p.stopping.Load() {
		c.fail(p.death())
	}
}
