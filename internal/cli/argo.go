// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/argo"
)

// argoFlags are the flags that only Argo's plugins have.
type argoFlags struct {
	dial     connect.Flags
	waits    int
	instance string
}

func (f *argoFlags) add(flags *pflag.FlagSet) {
	f.dial.AddAsDriver(flags)
	// The Rollouts of another instance belong to another controller.
	flags.StringVar(&f.instance, "instance-id", "",
		"that of Argo's controller, to act on its Rollouts (default: those without an instance)")
	flags.IntVar(&f.waits, "step-waits", argo.DefaultStepWaits,
		"steps that may wait inside the controller at once; each takes one of its workers (--rollout-threads, 10 by default)")
}

// serveArgo is the plugin that Argo Rollouts launched. Invalid flags end the process, with a message in the controller's
// log; an unreachable driver or API server does not.
func serveArgo(ctx context.Context, o *connect.Options, args []string) error {
	var flags argoFlags
	if err := parsePluginArgs(o, args, flags.add); err != nil {
		return err
	}
	if err := flags.dial.Check(o); err != nil {
		return err
	}
	if flags.waits < 0 {
		return exit.Usagef("--step-waits %d: want 0 or more", flags.waits)
	}
	var err error
	if o.Logger, err = o.NewPluginLogger(); err != nil {
		return err
	}
	config, err := o.RESTConfig()
	if err != nil {
		return err
	}
	// Both of Argo's plugins run a driver for all workloads; only the router's writes events.
	o.Silent = argo.StartedAs() == argo.RoleStep
	driver, err := flags.dial.Reach(ctx, o)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(driver.Context)
	defer stop()
	err = runArgo(serving, o, config, driver.Client, flags) //nolint:contextcheck // The link's context is made from ctx.
	// Work on Rollouts ends before the driver that it calls.
	stop()
	return errors.Join(err, driver.Close())
}

// runArgo serves the controller's calls, and runs the Rollout controller beside them.
func runArgo(ctx context.Context, o *connect.Options, config *rest.Config, driver *plugin.Client, flags argoFlags) error {
	controller, broadcaster, err := newController(o, config, driver)
	if err != nil {
		return err
	}
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		o.Logger.Warn("events will be missing", "error", err)
	}
	controller.InstanceID = flags.instance
	if argo.StartedAs() == argo.RoleStep {
		go controller.Watch(ctx) // Argo starts the router's process for every Rollout, and that of the steps for a step
	} else {
		go func() {
			if err := controller.Run(ctx); err != nil {
				o.Logger.Error("Rollouts are not watched", "error", err)
			}
		}()
	}
	p := &argo.Plugin{
		Driver: driver, Rollouts: controller, Logger: o.Logger, Waits: make(chan struct{}, flags.waits), Context: ctx,
	}
	return p.Serve(ctx)
}

func newController(o *connect.Options, config *rest.Config, driver *plugin.Client) (*argo.Controller, events.EventBroadcaster, error) {
	client, err := dynamic.NewForConfig(config)
	core, coreErr := kubernetes.NewForConfig(config)
	if err := cmp.Or(err, coreErr); err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: core.EventsV1()})
	return &argo.Controller{
		Driver: driver, Client: client, Logger: o.Logger, Namespace: o.Namespace,
		Events: broadcaster.NewRecorder(scheme.Scheme, "lockstep-argo"),
	}, broadcaster, nil
}
