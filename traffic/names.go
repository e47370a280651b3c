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

// What a release writes on the objects that carry traffic.
const (
	// FieldManager owns the fields that are written.
	FieldManager = "lockstep"

	// FenceAnnotation on the stable Service and pool lists, as JSON, the labels that the fence added to the selector.
	FenceAnnotation = "lockstep.dev/fence"

	// CanariesAnnotation on a route lists the canaries that have a share of it: "Service/sglang-canary,Service/vllm-canary". The
	// weights of a rule with a backendRef to one of them are multiplied.
	CanariesAnnotation = "lockstep.dev/canaries"

	// RoleLabel and StableLabel mark generated objects, as they mark the canary workload.
	RoleLabel = "lockstep.dev/role"
	// RoleCanary is the role of the canary Service, pool and Ingress.
	RoleCanary = "canary"
	// StableLabel names the stable workload.
	StableLabel = "lockstep.dev/stable"

	// rulePrefix is the prefix of the names of rules that releases add to routes.
	rulePrefix = "lockstep."
)

// GatewayGroup and GatewayVersion are the API version with which routes are read and written.
const (
	GatewayGroup   = "gateway.networking.k8s.io"
	GatewayVersion = "v1"
)

// InferenceGroup and InferenceVersion are the API version with which pools are read and written.
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

// MarshalText returns the serialized form: "HTTPRoute/llm".
func (k Key) MarshalText() ([]byte, error) { return []byte(k.Kind + "/" + k.Name), nil }

// UnmarshalText parses the form of MarshalText.
func (k *Key) UnmarshalText(text []byte) error {
	kind, name, ok := strings.Cut(string(text), "/")
	if !ok {
		return fmt.Errorf("%q is not KIND/NAME", text)
	}
	k.Kind, k.Name = kind, name
	return nil
}

// canarySuffix is the suffix of the names of generated objects.
const canarySuffix = "-canary"

// canaryName returns the name of an object's generated counterpart: "llm-canary". A name that would be too long is cut and
// gets a hash, so that it stays unique.
func canaryName(name string) string {
	if len(name)+len(canarySuffix) <= validation.DNS1123SubdomainMaxLength {
		return name + canarySuffix
	}
	sum := sha256.Sum256([]byte(name))
	end := "-" + hex.EncodeToString(sum[:4]) + canarySuffix
	return strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-len(end)], "-.") + end
}
