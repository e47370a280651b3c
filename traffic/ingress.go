// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// CanaryIngress generates the canary's Ingress from the user's: the paths to the stable Service, with the canary Service as
// backend. It returns nil if there are none, or if the canary has no share. What an Ingress can't express is left out, see [Supported].
func CanaryIngress(user *networkingv1.Ingress, s Setup, d Desired) *networkingv1.Ingress {
	return canaryIngress(user, s, d.Weight, allPaths)
}

// ingressPath identifies a path of an Ingress.
type ingressPath struct{ host, path, kind string }

// defaultBackend stands for the default backend.
var defaultBackend = ingressPath{kind: "default"}

func allPaths(ingressPath) bool { return true }

func pathOf(rule networkingv1.IngressRule, path networkingv1.HTTPIngressPath) ingressPath {
	return ingressPath{rule.Host, path.Path, string(ptr.Deref(path.PathType, ""))}
}

// pathsOf returns the paths for which an Ingress has a backend.
func pathsOf(o *networkingv1.Ingress) map[ingressPath]bool {
	out := map[ingressPath]bool{defaultBackend: o.Spec.DefaultBackend != nil}
	for _, rule := range o.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, path := range rule.HTTP.Paths {
			out[pathOf(rule, path)] = true
		}
	}
	return out
}

// canaryIngress is CanaryIngress for a weight and some of the paths.
func canaryIngress(user *networkingv1.Ingress, s Setup, weight int, at func(ingressPath) bool) *networkingv1.Ingress {
	if user == nil || weight == 0 {
		return nil
	}
	spec, leads := canaryIngressSpec(user, s, at)
	if !leads {
		return nil
	}
	c := &networkingv1.Ingress{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: KindIngress},
		ObjectMeta: generatedMeta(s, canaryName(user.Name), user, ingressKeys...),
		Spec:       spec,
	}
	// A copied annotation such as canary-by-header would send requests to the canary whatever its weight.
	maps.DeleteFunc(c.Annotations, func(k, _ string) bool { return isConvention(k) })
	if spec.IngressClassName != nil {
		delete(c.Annotations, ingressClass)
	}
	c.Annotations[canaryMark], c.Annotations[canaryWeight] = "true", strconv.Itoa(weight)
	return c
}

// canaryIngressSpec returns the user's spec, reduced to the paths to the stable Service, and whether it has any. By the
// convention a controller uses class and TLS of the user's Ingress; one that does not finds them in the canary's.
func canaryIngressSpec(user *networkingv1.Ingress, s Setup, at func(ingressPath) bool) (out networkingv1.IngressSpec, leads bool) {
	from := user.Spec.DeepCopy()
	out = networkingv1.IngressSpec{IngressClassName: from.IngressClassName, TLS: from.TLS}
	// The spec is a copy, so redirect may change its backends.
	if b := from.DefaultBackend; b != nil && at(defaultBackend) && redirectToCanary(b, s) {
		out.DefaultBackend = b
	}
	for _, rule := range from.Rules {
		if rule.HTTP == nil {
			continue
		}
		rule.HTTP.Paths = slices.DeleteFunc(rule.HTTP.Paths, func(path networkingv1.HTTPIngressPath) bool {
			return !at(pathOf(rule, path)) || !redirectToCanary(&path.Backend, s)
		})
		if len(rule.HTTP.Paths) > 0 {
			out.Rules = append(out.Rules, rule)
		}
	}
	return out, out.DefaultBackend != nil || len(out.Rules) > 0
}

// ingressPorts returns the ports of the stable Service to which an Ingress sends requests.
func ingressPorts(user *networkingv1.Ingress, s Setup) []networkingv1.ServiceBackendPort {
	var out []networkingv1.ServiceBackendPort
	spec, _ := canaryIngressSpec(user, s, allPaths)
	if b := spec.DefaultBackend; b != nil {
		out = append(out, b.Service.Port)
	}
	for _, rule := range spec.Rules {
		for _, path := range rule.HTTP.Paths {
			out = append(out, path.Backend.Service.Port)
		}
	}
	return out
}

// redirectToCanary replaces the stable Service in a backend with the canary's, and reports whether it did.
func redirectToCanary(b *networkingv1.IngressBackend, s Setup) bool {
	if b.Service == nil || b.Service.Name != s.Policy.StableService {
		return false
	}
	b.Service.Name = s.Policy.CanaryService
	return true
}

// ingressDrift is driftOf, except that it removes foreign canary annotations, which change each other's meaning.
func ingressDrift(have, want *networkingv1.Ingress) (patch, error) {
	old, err := toJSON(have)
	if err != nil {
		return nil, err
	}
	next, err := toJSON(want)
	if err != nil {
		return nil, err
	}
	// A foreign annotation of the convention, such as another total, changes what the weight means.
	p := driftOf(have, want, old["spec"], next["spec"])
	for k := range have.Annotations {
		if _, wanted := want.Annotations[k]; !wanted && isConvention(k) {
			p.set(nil, "metadata", "annotations", k)
		}
	}
	return p, nil
}

// checkIngress requires an Ingress that can be split, and a free name for the canary's.
func checkIngress(s Setup, name string, w World) error {
	user, key := w.Ingresses[name], Key{KindIngress, name}
	if user == nil {
		return missingError(s, key)
	}
	if user.Annotations[canaryMark] == "true" {
		return unusableError("%s is a canary Ingress itself (annotation %s): name the Ingress that it is a canary of", key, canaryMark)
	}
	if _, leads := canaryIngressSpec(user, s, allPaths); !leads {
		return unusableError("%s has no backend with Service %s, so there is nothing to split: add one, or remove the Ingress from the policy", key, s.Policy.StableService)
	}
	if have := w.Ingresses[canaryName(name)]; have != nil && !madeFor(have, s) {
		return nameTaken(s, Key{KindIngress, have.Name}, renameIngress(name, have))
	}
	return nil
}

// renameIngress is the remedy for a foreign Ingress with the name of the canary's. It may belong to the release of another workload
// that shares the user's Ingress.
func renameIngress(name string, have *networkingv1.Ingress) string {
	if other := have.Labels[StableLabel]; have.Labels[RoleLabel] == RoleCanary && other != "" {
		return fmt.Sprintf("wait for the release of %s, which shares Ingress %s, or give each workload its own Ingress", other, name)
	}
	return "rename Ingress " + name
}

// shrunkIngress returns the canary's Ingress as desired, without paths and weight that it does not have yet.
func shrunkIngress(user, have *networkingv1.Ingress, s Setup, d Desired) *networkingv1.Ingress {
	paths := pathsOf(have)
	return canaryIngress(user, s, min(d.Weight, weightIn(have.Annotations)), func(p ingressPath) bool { return paths[p] })
}

// ingressWrite returns the write that is due on the canary's Ingress for one of the user's. With shrinkOnly, the share does
// not grow, which is safe whatever the state of the canary.
func ingressWrite(s Setup, d Desired, w World, name string, shrinkOnly bool) (*Write, error) {
	user, have := w.Ingresses[name], w.Ingresses[canaryName(name)]
	if have != nil && have.DeletionTimestamp != nil {
		return noWrite() // recreated once deleted
	}
	own := have != nil && madeFor(have, s)
	var want *networkingv1.Ingress
	switch {
	case !shrinkOnly:
		want = CanaryIngress(user, s, d)
	case own:
		want = shrunkIngress(user, have, s, d)
	}
	key := Key{KindIngress, canaryName(name)}
	switch {
	case want == nil && !own:
		// A foreign Ingress with the canary's name stops a release only once the release needs the name.
		return noWrite()
	case want == nil:
		return deleteOf(key, have, "no request is sent to the canary"), nil
	case have == nil:
		return createOf(key, want, fmt.Sprintf("%d %% to the canary", d.Weight))
	}
	p, err := ingressDrift(have, want)
	if err != nil {
		return nil, err
	}
	return reconcileGenerated(s, key, have, renameIngress(name, have), p, weightChange(weightIn(have.Annotations), d))
}

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
		return unsupportedError("Ingress %s can't have header route %s: remove it, or %s", p.Ingresses[0], d.HeaderRoutes[0].Name, instead)
	case d.Mirror > 0:
		return unsupportedError("Ingress %s can't mirror requests to the canary: remove the mirror, or %s", p.Ingresses[0], instead)
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
	// Rounded down, a small share would count as withdrawn while requests still reach the canary.
	return min(100, (100*weight+total-1)/total)
}
