// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/argo"
)

// argoFlags are what Argo's plugins have beside the flags of all.
type argoFlags struct {
	dial  dialFlags
	waits int
}

func (f *argoFlags) add(flags *pflag.FlagSet) {
	f.dial.addAsDriver(flags)
	flags.IntVar(&f.waits, "step-waits", argo.DefaultStepWaits,
		"steps that may wait inside the controller at once; each takes one of its workers (--rollout-threads, 10 by default)")
}

// serveArgo serves Argo Rollouts as the plugin that it started this process for. Flags that are wrong end the process
// with a message in the controller's log; a driver or an API server that is away does not.
func serveArgo(ctx context.Context, o *options, args []string) error {
	var flags argoFlags
	if err := o.parsePluginArgs(args, flags.add); err != nil {
		return err
	}
	if err := flags.dial.checkAsDriver(); err != nil {
		return err
	}
	if flags.waits < 0 {
		return usageErrorf("--step-waits %d: want 0 or more", flags.waits)
	}
	level, err := o.level()
	if err != nil {
		return err
	}
	o.log = captureKlog(slog.New(plugin.NewLogHandler(o.stderr, level)))
	config, err := o.restConfig()
	if err != nil {
		return err
	}
	driver, ctx, closeDriver, err := flags.reach(ctx, o)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	err = o.runArgo(serving, config, driver, flags.waits)
	stop()
	return errors.Join(err, closeDriver())
}

// reach connects to the driver, or starts one inside this process. The returned context ends when that one fails.
func (f *argoFlags) reach(ctx context.Context, o *options) (argo.Driver, context.Context, func() error, error) {
	if f.dial.address == "" {
		// Both of Argo's plugins have a driver, and both work on everything; one of them tells people.
		o.silent = argo.StartedAs() == argo.RoleStep
		inside, err := connectInside(ctx, o)
		if err != nil {
			return nil, nil, nil, err
		}
		return inside, inside.ctx, inside.close, nil
	}
	// The connection lasts as long as the process.
	driver := argo.NewPendingDriver(func(failed func(error)) argo.Driver {
		if link := f.dial.dialUntilReached(ctx, o.log, failed); link != nil {
			return link
		}
		return nil
	})
	return driver, ctx, func() error { return nil }, nil
}

// runArgo serves the controller's calls, and keeps Rollouts and workloads together beside them.
func (o *options) runArgo(ctx context.Context, config *rest.Config, driver argo.Driver, waits int) error {
	controller, recorder, err := o.argoController(config, driver)
	if err != nil {
		return err
	}
	step := &argo.StepPlugin{
		Driver: driver, Rivals: controller, Logger: o.log, Waits: make(chan struct{}, waits), Context: ctx,
	}
	router := &argo.RouterPlugin{Driver: driver, Rivals: controller, Logger: o.log, Context: ctx}
	go recorder.Run(ctx)
	go func() {
		if err := controller.Run(ctx); err != nil {
			o.log.Error("Rollouts are not watched", "error", err)
		}
	}()
	return argo.Serve(ctx, step, router, o.log)
}

func (o *options) argoController(config *rest.Config, driver argo.Driver) (*argo.Controller, *argo.EventRecorder, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	recorder := argo.NewEventRecorder(core, o.log)
	return &argo.Controller{
		Driver: driver, Client: client, Logger: o.log, Recorder: recorder, Namespace: o.namespace,
		UnroutedOnly: argo.StartedAs() == argo.RoleStep,
		Adopted: func(ctx context.Context) ([]types.NamespacedName, error) {
			return adoptedWorkloads(ctx, objects, o.namespace)
		},
	}, recorder, nil
}

// adoptedWorkloads lists the workloads that carry the driver's record.
func adoptedWorkloads(ctx context.Context, client metadata.Interface, namespace string) ([]types.NamespacedName, error) {
	resource := schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}
	list, err := client.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err //nolint:wrapcheck // The controller asks for the API's reason.
	}
	var keys []types.NamespacedName
	for i := range list.Items {
		if _, ok := list.Items[i].Annotations[record.RecordAnnotation]; ok {
			keys = append(keys, types.NamespacedName{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name})
		}
	}
	return keys, nil
}
