package cluster

import (
	"context"
	"fmt"
)

// StopComponent ends one component, gracefully if it goes within a few seconds and before ctx ends, and returns when it is gone. Its data and
// port stay its own.
func (c *Cluster) StopComponent(ctx context.Context, name string) error {
	if _, err := c.process(name); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	c.end(name, ctx.Done())
	return nil
}

// KillComponent ends one component with SIGKILL and returns when it is gone. What it has started is left to itself.
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

// StartComponent starts a component that was stopped, on the same port and data, and returns when it is ready again.
func (c *Cluster) StartComponent(ctx context.Context, name string) error {
	c.mu.Lock()
	comp, ok := c.components[name]
	c.mu.Unlock()
	if !ok {
		return fmt.Errorf("start %s: the cluster has no such component", name)
	}
	return c.start(ctx, comp)
}

// PauseComponent freezes a component: it keeps its connections and answers none of them, as on a stalled machine.
func (c *Cluster) PauseComponent(name string) error {
	p, err := c.process(name)
	if err == nil {
		err = p.pause()
	}
	if err != nil {
		return fmt.Errorf("pause %s: %w", name, err)
	}
	return nil
}

// ResumeComponent lets a paused component go on.
func (c *Cluster) ResumeComponent(name string) error {
	p, err := c.process(name)
	if err == nil {
		err = p.resume()
	}
	if err != nil {
		return fmt.Errorf("resume %s: %w", name, err)
	}
	return nil
}

// StopAPIServer makes the API server unreachable. The controllers go on trying.
func (c *Cluster) StopAPIServer(ctx context.Context) error { return c.StopComponent(ctx, APIServer) }

// StartAPIServer brings the API server back, on the same port and with the same data. The controllers notice one by one in
// the seconds that follow; see [Cluster.Settle].
func (c *Cluster) StartAPIServer(ctx context.Context) error { return c.StartComponent(ctx, APIServer) }

// InstallLWS adds LeaderWorkerSet to a cluster that was started [WithoutLWS] and returns when its webhooks answer and its
// objects are garbage-collected. For the latter it restarts the controller manager, which looks for new kinds when it starts
// and otherwise every 30 s.
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
