// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"os"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The handshake by which a driver's binary recognizes that a host started it as a plugin. The cookie is no secret: it only
// keeps a user from running a plugin by hand by mistake.
const (
	// CookieKey is the environment variable that the host sets.
	CookieKey = "LOCKSTEP_PLUGIN"
	// CookieValue is its value.
	CookieValue = "b1f9e0c5-lockstep-driver"
	// ProtocolVersion is the version of the handshake. That of the contract is part of the service names.
	ProtocolVersion = 1
	// Name is the plugin's name in go-plugin's plugin set.
	Name = "driver"
)

// IsPlugin reports whether a host started this process as a driver plugin.
func IsPlugin() bool {
	return os.Getenv(CookieKey) == CookieValue
}

func handshakeConfig() goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{
		ProtocolVersion:  ProtocolVersion,
		MagicCookieKey:   CookieKey,
		MagicCookieValue: CookieValue,
	}
}

// grpcPlugin registers both services on go-plugin's server, and returns its connection on the host's side.
type grpcPlugin struct {
	goplugin.NetRPCUnsupportedPlugin

	driver pb.WorkloadDriverServer
	router pb.TrafficRouterServer
}

var _ goplugin.GRPCPlugin = (*grpcPlugin)(nil)

// GRPCServer registers the services.
func (p *grpcPlugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	if p.driver == nil {
		return errors.New("no WorkloadDriver to serve")
	}
	Register(s, p.driver, p.router)
	return nil
}

// GRPCClient returns the connection itself, from which Launch makes a Client as Dial does.
func (*grpcPlugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// Register registers a driver's services on a gRPC server. Without a router, the RPCs of TrafficRouter are UNIMPLEMENTED.
func Register(s grpc.ServiceRegistrar, driver pb.WorkloadDriverServer, router pb.TrafficRouterServer) {
	pb.RegisterWorkloadDriverServer(s, driver)
	if router != nil {
		pb.RegisterTrafficRouterServer(s, router)
	}
}
