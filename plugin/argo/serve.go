// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/argoproj/argo-rollouts/rollout/steps/plugin/rpc"
	routerrpc "github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
	goplugin "github.com/hashicorp/go-plugin"

	"github.com/lockstep-rollouts/lockstep/plugin"
)

// cookieKey is the environment variable by which Argo selects the plugin that a binary serves.
const cookieKey = "ARGO_ROLLOUTS_RPC_PLUGIN"

// Role is the kind of plugin that this process is.
type Role string

// The roles, with Argo's names.
const (
	RoleNone   Role = ""
	RoleStep   Role = "step"
	RoleRouter Role = "trafficrouter"
)

// StartedAs returns the role for which Argo Rollouts started this process, RoleNone if it did not.
func StartedAs() Role {
	switch role := Role(os.Getenv(cookieKey)); role {
	case RoleStep, RoleRouter:
		return role
	default:
		return RoleNone
	}
}

// Plugin is Argo's step plugin and its traffic-router plugin: Argo starts a process for each. It may be called by several goroutines.
type Plugin struct {
	// Driver is required.
	Driver Driver
	// Rollouts knows what the API server has: Argo's controller sends only one Rollout, as it was when it last read it. Nil: unknown.
	Rollouts *Controller
	// Logger is required.
	Logger *slog.Logger
	// Waits bounds how many steps wait at once: each occupies a worker of Argo's controller. Nil means that none waits.
	Waits chan struct{}
	// Context ends with the process. Required.
	Context context.Context //nolint:containedctx // Argo's interface has none.
}

// InitPlugin does nothing: the driver fills its caches by itself, and Argo calls only once.
func (*Plugin) InitPlugin() types.RpcError { return types.RpcError{} }

// Type returns the plugin's name.
func (*Plugin) Type() string { return PluginName }

// set returns the plugin set of a role.
func (p *Plugin) set(role Role) goplugin.PluginSet {
	if role == RoleStep {
		return goplugin.PluginSet{"RpcStepPlugin": &rpc.RpcStepPlugin{Impl: p}}
	}
	return goplugin.PluginSet{"RpcTrafficRouterPlugin": &routerrpc.RpcTrafficRouterPlugin{Impl: p}}
}

// Serve serves the role for which Argo started this process. It returns when ctx has ended, Argo has closed the plugin, or Argo's
// controller has exited; the caller then exits. It does not wait for calls in flight: what they requested of the driver is durable, and
// Argo calls again.
//
// Serve takes over os.Stdout and os.Stderr and writes the handshake to the real stdout.
func (p *Plugin) Serve(ctx context.Context) error {
	role := StartedAs()
	if role == RoleNone {
		return fmt.Errorf("this process was not started by Argo Rollouts: %s is not set", cookieKey)
	}
	ctx, forget := plugin.WithHost(ctx, p.Logger)
	defer forget()
	// A directory of its own, so that no socket is left if the controller is killed.
	dir, err := os.MkdirTemp("", "lockstep-argo-")
	if err != nil {
		return fmt.Errorf("make a directory for the plugin's socket: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Setenv(goplugin.EnvUnixSocketDir, dir); err != nil {
		return fmt.Errorf("set the directory for the plugin's socket: %w", err)
	}
	// go-plugin's Serve does not end with ctx.
	served := make(chan struct{})
	go func() {
		defer close(served)
		goplugin.Serve(&goplugin.ServeConfig{
			HandshakeConfig: goplugin.HandshakeConfig{
				ProtocolVersion: 1, MagicCookieKey: cookieKey, MagicCookieValue: string(role),
			},
			Plugins: p.set(role),
			Logger:  plugin.NewHCLogger(p.Logger),
		})
	}()
	select {
	case <-served:
	case <-ctx.Done():
	}
	return nil
}
