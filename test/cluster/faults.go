// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
)

// StopComponent stops a component, gracefully if it exits within a few seconds and before ctx ends, and returns when it has exited.
// It keeps its data and ports.
func (c *Cluster) StopComponent(ctx context.Context, name string) error {
	if _, err := c.process(name); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	c.end(name, ctx.Done())
	return nil
}

// KillComponent kills a component with SIGKILL and returns when it has exited. Its child processes keep running.
func (c *Cluster) KillComponent(name string) error {
	c.mu.Lock()
	p, ok := c.running[name]
	delete(c.running, name)
	c.mu.Unlock()
	if !ok {
		return fmt.Errorf("kill %s: it does not run", name)
	}
	p.stopping.Store(true)
	_ = p.Cmd.Process.Kill()
	<-p.Exited
	return nil
}

// SuspendComponent stops a component as SIGSTOP does, until [Cluster.ResumeComponent]. Its child processes keep running.
func (c *Cluster) SuspendComponent(name string) error { return c.signal(name, syscall.SIGSTOP) }

// ResumeComponent continues a suspended component.
func (c *Cluster) ResumeComponent(name string) error { return c.signal(name, syscall.SIGCONT) }

func (c *Cluster) signal(name string, signal syscall.Signal) error {
	p, err := c.process(name)
	if err == nil {
		err = p.Cmd.Process.Signal(signal)
	}
	if err != nil {
		return fmt.Errorf("send %v to %s: %w", signal, name, err)
	}
	return nil
}

// StartComponent starts a stopped component with the same ports and data, and returns when it is ready.
func (c *Cluster) StartComponent(ctx context.Context, name string) error {
	c.mu.Lock()
	comp, ok := c.components[name]
	c.mu.Unlock()
	if !ok {
		return fmt.Errorf("start %s: the cluster has no such component", name)
	}
	return c.start(ctx, comp)
}

// FillEtcd makes etcd refuse writes, as one does whose disk has no space left, until [Cluster.FreeEtcd].
func (c *Cluster) FillEtcd(ctx context.Context) error { return c.alarm(ctx, "ACTIVATE") }

// FreeEtcd ends the effect of [Cluster.FillEtcd].
func (c *Cluster) FreeEtcd(ctx context.Context) error { return c.alarm(ctx, "DEACTIVATE") }

func (c *Cluster) alarm(ctx context.Context, action string) error {
	body := strings.NewReader(`{"action":"` + action + `","memberID":"1","alarm":"NOSPACE"}`)
	return c.request(ctx, http.MethodPost, "https://"+address(c.port.etcd)+"/v3/maintenance/alarm", body)
}

// StopAPIServer makes the API server unreachable. The controllers retry.
func (c *Cluster) StopAPIServer(ctx context.Context) error { return c.StopComponent(ctx, APIServer) }

// StartAPIServer starts the API server again, with the same port and data. The controllers reconnect in the following seconds; see
// [Cluster.Settle].
func (c *Cluster) StartAPIServer(ctx context.Context) error { return c.StartComponent(ctx, APIServer) }

// InstallLWS installs LeaderWorkerSet in a cluster that was started [WithoutLWS], and returns when its webhooks serve and its objects
// are garbage-collected. For the latter it restarts the controller manager, which discovers new kinds at startup and every 30 s.
func (c *Cluster) InstallLWS(ctx context.Context) error {
	if err := c.start(ctx, lwsComponent); err != nil {
		return err
	}
	if err := c.StopComponent(ctx, ControllerManager); err != nil {
		return err
	}
	return c.StartComponent(ctx, ControllerManager)
}

func (c *Cluster) process(name string) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.running[name]
	if !ok {
		return nil, fmt.Errorf("component %s does not run", name)
	}
	return p, nil
}
