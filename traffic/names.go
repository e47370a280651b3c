// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// What the release writes on objects of the data plane.
const (
	// FieldManager owns the fields that are written.
	FieldManager = "lockstep"

	// FenceAnnotation on the stable Service and the stable pool notes, as JSON, the labels that the fence added to the
	// selector.
	FenceAnnotation = "lockstep.dev/fence"

	// RoleLabel and StableLabel mark what a release added, as on the canary workload.
	RoleLabel = "lockstep.dev/role"
	// RoleCanary is the role of the canary Service, pool and Ingress.
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

// InferenceGroup and InferenceVersion are the Inference Extension's API that pools are read and written as.
const (
	InferenceGroup   = "inference.networking.k8s.io"
	InferenceVersion = "v1"
)

// Kinds of objects that carry traffic.
const (
	KindService       = "Service"
	KindHTTPRoute     = "HTTPRoute"
	KindGRPCRoute     = "GRPCRoute"
	KindIngress       = "Ingress"
	KindInferencePool = "InferencePool"
)

// Key names an object in the namespace of the release.
type Key struct{ Kind, Name string }

func (k Key) String() string { return k.Kind + " " + k.Name }

// MarshalText returns the key as it is written down: "HTTPRoute/llm".
func (k Key) MarshalText() ([]byte, error) { return []byte(k.Kind + "/" + k.Name), nil }

// UnmarshalText reads what MarshalText returned.
func (k *Key) UnmarshalText(text []byte) error {
	kind, name, ok := strings.Cut(string(text), "/")
	if !ok {
		return fmt.Errorf("%q is not KIND/NAME", text)
	}
	k.Kind, k.Name = kind, name
	return nil
}

// canarySuffix ends the names of generated objects.
const canarySuffix = "-canary"

// canaryName is the name of what is generated beside an object: "llm-canary". A name that would be too long is cut, and a
// hash keeps it apart from others that begin alike.
func canaryName(name string) string {
	if len(name)+len(canarySuffix) <= validation.DNS1123SubdomainMaxLength {
		return name + canarySuffix
	}
	sum := sha256.Sum256([]byte(name))
	end := "-" + hex.EncodeToString(sum[:4]) + canarySuffix
	return strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-len(end)], "-.") + end
}
