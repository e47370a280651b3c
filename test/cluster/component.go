// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// component is a program of the cluster: its module, installation, command and readiness. A new one (another controller, a gateway)
// is a new value and a module.
type component struct {
	name string
	// module has the program.
	module  func(Versions) module
	program string
	// install creates the objects that the program needs. Optional. It runs before each start of the component.
	install func(context.Context, *Cluster) error
	// command writes the program's files and returns its arguments and environment. The ports are the same at each start.
	command func(*Cluster) (command, error)
	// ready returns nil if the component is ready.
	ready func(context.Context, *Cluster) error
}

type command struct {
	args, env []string
	// within is a command that executes the program, whose path and arguments follow it. Optional.
	within []string
}

// Names of components, for [Cluster.StopComponent] and the like.
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
	Kueue             = "kueue"
)

const (
	// readyTimeout bounds the startup of a component. It is long, since machines are shared.
	readyTimeout = 2 * time.Minute
	// stopGrace is the time between a component's signal to exit and its kill.
	stopGrace = 3 * time.Second
)

// stopOrder has clients before the API server, and etcd last: an API server without etcd hangs for a minute.
var stopOrder = [][]string{{Argo, Kruise, Kueue}, {Traefik, LWS, KWOK, Scheduler, ControllerManager}, {APIServer}, {Etcd}}

// start installs and starts a component and waits until it is ready.
func (c *Cluster) start(ctx context.Context, comp component) error {
	if err := c.install(ctx, comp); err != nil {
		return err
	}
	return c.run(ctx, comp)
}

// install installs a component.
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

// run starts an installed component and waits until it is ready.
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

// launch starts the component's program and watches it.
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
		return nil, fmt.Errorf("start %s: it is already running (process %d)", comp.name, p.Cmd.Process.Pid)
	}
	logPath := filepath.Join(c.dir, "log", comp.name+".log")
	line := append(append(cmd.within, built.program(comp.program)), cmd.args...)
	p, err := spawn(comp.name, logPath, c.dir, line[0], line[1:], cmd.env)
	if err != nil {
		return nil, err
	}
	c.components[comp.name] = comp
	c.running[comp.name] = p
	go c.watch(p)
	return p, nil
}

// watch records the failure of a component that exits by itself.
func (c *Cluster) watch(p *process) {
	<-p.Exited
	if !p.stopping.Load() {
		c.fail(p.death())
	}
}
