// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

// What the release writes on objects of the data plane.
const (
	// FieldManager owns the fields that are written.
	FieldManager = "lockstep"

	// FenceAnnotation on the stable Service notes, as JSON, the labels that the fence added to its selector.
	FenceAnnotation = "lockstep.dev/fence"

	// RoleLabel and StableLabel mark what a release added, as on the canary workload.
	RoleLabel = "lockstep.dev/role"
	// RoleCanary is the role of the canary Service.
	RoleCanary = "canary"
	// StableLabel names the stable workload.
	StableLabel = "lockstep.dev/stable"

	// rulePrefix begins the names of the rules that releases add to routes.
	rulePrefix = "lockstep."
)

// GatewayGroup and GatewayVersion are the Gateway API that routes are read and written as.
const (
	GatewayGroup   = "gateway.networking.k8s.io"
	GatewayVersion = "v1"
)

// Kinds of objects that carry traffic.
const (
	KindService   = "Service"
	KindHTTPRoute = "HTTPRoute"
	KindGRPCRoute = "GRPCRoute"
)

// Key names an object in the namespace of the release.
type Key struct{ Kind, Name string }

func (k Key) String() string { return k.Kind + " " + k.Name }
