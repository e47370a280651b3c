// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Policy is a TrafficPolicy that was found valid.
type Policy struct {
	// StableService selects the stable leaders, CanaryService is generated for the canary's.
	StableService, CanaryService string
	// Routes carry the weights.
	Routes []Key
}

const policyField = "policy.traffic"

// ParsePolicy checks a policy and returns it as a value. Any violation makes the Policy unusable. What is valid but not
// served is for [Unserved] to say.
func ParsePolicy(p *pb.TrafficPolicy) (Policy, []drivererr.FieldViolation) {
	v := &violations{}
	policy := Policy{StableService: p.GetStableService(), CanaryService: p.GetCanaryService()}
	if policy.CanaryService == "" {
		policy.CanaryService = policy.StableService + "-canary"
	}
	v.service("stable_service", policy.StableService)
	if policy.StableService != "" {
		v.service("canary_service", policy.CanaryService)
	}
	if policy.CanaryService == policy.StableService {
		v.add("canary_service", "%q is the stable Service: give the canary a Service of its own", policy.CanaryService)
	}
	policy.Routes = append(v.routes("http_routes", KindHTTPRoute, p.GetHttpRoutes()),
		v.routes("grpc_routes", KindGRPCRoute, p.GetGrpcRoutes())...)
	if len(policy.Routes) == 0 && Unserved(p) == nil {
		v.add("http_routes", "no route is named, so nothing can split the requests: name one, or leave %s out to have shares follow group counts", policyField)
	}
	return policy, v.list
}

// Unserved returns an error that names what a policy asks for and this driver does not do, nil if there is none.
func Unserved(p *pb.TrafficPolicy) error {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"ingresses", len(p.GetIngresses()) > 0},
		{"inference_pool", p.GetInferencePool() != nil},
		{"drain", p.GetDrain() != nil},
		{"warm_up", p.GetWarmUp() != nil},
	} {
		if f.set {
			return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
				"%s.%s is not served by this driver: leave it out (GetDriverInfo lists what is served)", policyField, f.name)
		}
	}
	return nil
}

type violations struct{ list []drivererr.FieldViolation }

func (v *violations) add(field, format string, args ...any) {
	v.list = append(v.list, drivererr.FieldViolation{
		Field: policyField + "." + field, Description: fmt.Sprintf(format, args...),
	})
}

func (v *violations) service(field, name string) {
	if name == "" {
		v.add(field, "is required")
		return
	}
	for _, problem := range validation.IsDNS1035Label(name) {
		v.add(field, "%q can't be a Service's name: %s", name, problem)
	}
}

func (v *violations) routes(field, kind string, names []string) []Key {
	keys := make([]Key, 0, len(names))
	seen := map[string]bool{}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", field, i)
		for _, problem := range validation.IsDNS1123Subdomain(name) {
			v.add(at, "%q can't be the name of an object: %s", name, problem)
		}
		if seen[name] {
			v.add(at, "%q is named twice", name)
		}
		seen[name] = true
		keys = append(keys, Key{kind, name})
	}
	return keys
}
