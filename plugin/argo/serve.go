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

// plugins returns the plugin set of the role.
func (r Role) plugins(step rpc.StepPlugin, router routerrpc.TrafficRouterPlugin) goplugin.PluginSet {
	if r == RoleStep {
		return goplugin.PluginSet{"RpcStepPlugin": &rpc.RpcStepPlugin{Impl: step}}
	}
	return goplugin.PluginSet{"RpcTrafficRouterPlugin": &routerrpc.RpcTrafficRouterPlugin{Impl: router}}
}

// Serve serves the role for which Argo started this process. The plugin of the other role may be nil. It returns when ctx has
// ended, Argo has closed the plugin, or Argo's controller has exited; the caller then exits. It does not wait for calls in
// flight: what they requested of the driver is durable, and Argo calls again.
//
// Serve takes over os.Stdout and os.Stderr and writes the handshake to the real stdout.
func Serve(ctx context.Context, step rpc.StepPlugin, router routerrpc.TrafficRouterPlugin, logger *slog.Logger) error {
	role := StartedAs()
	if role == RoleNone {
		return fmt.Errorf("this process was not started by Argo Rollouts: %s is not set", cookieKey)
	}
	ctx, forget := plugin.WithHost(ctx, logger)
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
			Plugins: role.plugins(step, router),
			Logger:  plugin.NewHCLogger(logger),
		})
	}()
	select {
	case <-served:
	case <-ctx.Done():
	}
	return nil
}
