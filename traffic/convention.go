// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strconv"
	"strings"
)

// IngressPrefix is the prefix of the canary annotations. They are a convention of ingress-nginx, which is retired since
// March 2026; other controllers support them too, for example Higress.
const IngressPrefix = "nginx.ingress.kubernetes.io/"

// The canary annotations. The weight is a percentage unless a total is set.
const (
	canaryMark   = IngressPrefix + "canary"
	canaryWeight = canaryMark + "-weight"
	canaryTotal  = canaryMark + "-weight-total"
)

// ingressClass is the deprecated annotation for the class of an Ingress. The API server rejects a new Ingress with both the
// annotation and the field.
const ingressClass = "kubernetes.io/ingress.class"

// Supported returns an error if the objects of the policy can't express what is desired. Routes can; an Ingress has a weight only.
func Supported(p Policy, d Desired) error {
	const instead = "use routes of the Gateway API in place of Ingresses"
	switch {
	case len(p.Ingresses) == 0:
		return nil
	case len(d.HeaderRoutes) > 0:
		return unsupported("Ingress %s can't have header route %s: remove it, or %s", p.Ingresses[0], d.HeaderRoutes[0].Name, instead)
	case d.Mirror > 0:
		return unsupported("Ingress %s can't mirror requests to the canary: remove the mirror, or %s", p.Ingresses[0], instead)
	}
	return nil
}

// isConvention reports whether an annotation belongs to the convention, including those that this package does not set.
func isConvention(key string) bool {
	return key == canaryMark || strings.HasPrefix(key, canaryMark+"-")
}

// weightIn returns the weight in annotations. One that is not a number means no share, as in controllers.
func weightIn(annotations map[string]string) int {
	weight, err := strconv.Atoi(annotations[canaryWeight])
	total, bad := strconv.Atoi(annotations[canaryTotal])
	if bad != nil || total <= 0 {
		total = 100
	}
	if err != nil || weight <= 0 {
		return 0
	}
	return min(100, (100*weight+total-1)/total)
}
