// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Policy is a valid TrafficPolicy.
type Policy struct {
	// StableService is the user's Service, CanaryService the generated one for canary leaders.
	StableService, CanaryService string
	// Routes carry the weights.
	Routes []Key
	// Ingresses are the user's. While the canary has a share, each has a generated canary Ingress.
	Ingresses []string
	// Pool is the backend of the routes. Nil means that the Services are.
	Pool *Pool
}

// Pool is the InferencePool whose requests are split.
type Pool struct {
	// Stable is the user's pool, Canary the generated one for canary leaders.
	Stable, Canary string
	// Picker is the Service of the canary pool's endpoint picker, PickerPort its port; 0: the stable picker's.
	Picker     string
	PickerPort int32
}

const policyField = "policy.traffic"

// ParsePolicy validates a policy. The Policy must not be used if there are violations.
func ParsePolicy(p *pb.TrafficPolicy) (Policy, []drivererr.FieldViolation) {
	v := &violations{drivererr.Fields{Path: policyField}}
	// The checks below cost time and text for each name, and the client decides how many there are.
	if n := len(p.GetHttpRoutes()) + len(p.GetGrpcRoutes()) + len(p.GetIngresses()); n > MaxRoutes {
		v.Add("http_routes", "%d routes and Ingresses are more than the %d that are possible", n, MaxRoutes)
		return Policy{}, v.List
	}
	policy := Policy{StableService: p.GetStableService(), CanaryService: cmp.Or(p.GetCanaryService(), p.GetStableService()+canarySuffix)}
	v.service("stable_service", policy.StableService)
	// Without a stable Service the derived name is only a suffix, and an error about it would mislead.
	if policy.StableService != "" {
		v.service("canary_service", policy.CanaryService)
	}
	if policy.CanaryService == policy.StableService {
		v.Add("canary_service", "%q is the stable Service: name another Service for the canary", policy.CanaryService)
	}
	policy.Routes = append(v.routes("http_routes", KindHTTPRoute, p.GetHttpRoutes()),
		v.routes("grpc_routes", KindGRPCRoute, p.GetGrpcRoutes())...)
	policy.Ingresses = v.ingresses(p.GetIngresses())
	if p.GetInferencePool() != nil {
		policy.Pool = v.pool(p.GetInferencePool(), policy)
	}
	switch {
	case len(policy.Routes) > 0:
	case policy.Pool != nil:
		v.Add("http_routes", "no route is named, and only routes can split requests between pools: name the routes to pool %q", policy.Pool.Stable)
	case len(policy.Ingresses) == 0:
		v.Add("http_routes", "neither a route nor an Ingress is named, so nothing can split the requests: name one, or leave %s out to have shares follow group counts", policyField)
	}
	return policy, v.List
}

type violations struct{ drivererr.Fields }

func (v *violations) service(field, name string) {
	if name == "" {
		v.Add(field, "is required")
		return
	}
	for _, problem := range validation.IsDNS1123Label(name) { // a digit may be first since Kubernetes 1.36
		v.Add(field, "%q can't be a Service's name: %s", name, problem)
	}
}

func (v *violations) routes(field, kind string, names []string) []Key {
	keys := make([]Key, 0, len(names))
	for _, name := range v.names(field, names) {
		keys = append(keys, Key{kind, name})
	}
	return keys
}

func (v *violations) ingresses(names []string) []string {
	for i, name := range v.names("ingresses", names) {
		if slices.Contains(names, canaryName(name)) {
			v.Add(fmt.Sprintf("ingresses[%d]", i), "%q is also named, but is the name of the canary's generated Ingress for %q", canaryName(name), name)
		}
	}
	return names
}

func (v *violations) pool(p *pb.InferencePoolPolicy, of Policy) *Pool {
	const field = "inference_pool."
	pool := &Pool{
		Stable: p.GetName(), Canary: canaryName(p.GetName()),
		Picker: p.GetCanaryEndpointPicker(), PickerPort: p.GetCanaryEndpointPickerPort(),
	}
	v.object(field+"name", pool.Stable)
	v.service(field+"canary_endpoint_picker", pool.Picker)
	if pool.Picker != "" && (pool.Picker == of.StableService || pool.Picker == of.CanaryService) {
		v.Add(field+"canary_endpoint_picker", "%q selects leaders: name the Service of the canary pool's endpoint picker", pool.Picker)
	}
	if pool.PickerPort < 0 || pool.PickerPort > 65535 {
		v.Add(field+"canary_endpoint_picker_port", "%d is not a port: use 1 to 65535, or 0 for the stable pool's", pool.PickerPort)
	}
	return pool
}

// names validates a list of object names and returns it.
func (v *violations) names(field string, names []string) []string {
	seen := map[string]bool{}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", field, i)
		v.object(at, name)
		if seen[name] {
			v.Add(at, "%q is named twice", name)
		}
		seen[name] = true
	}
	return names
}

func (v *violations) object(field, name string) {
	if name == "" {
		v.Add(field, "is required")
		return
	}
	for _, problem := range validation.IsDNS1123Subdomain(name) {
		v.Add(field, "%q can't be the name of an object: %s", name, problem)
	}
}
