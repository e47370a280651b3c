// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"maps"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// CanaryIngress generates the canary's Ingress from the user's: the paths that lead to the stable Service, leading to the
// canary Service. Nil if there are none, or if the canary has no share. What canary annotations can't express is left out,
// see [Supported].
func CanaryIngress(user *networkingv1.Ingress, s Setup, d Desired) *networkingv1.Ingress {
	share, _ := shareFor(d)
	return canaryIngress(user, s, share, everywhere)
}

// place is what requests an Ingress has a backend for.
type place struct{ host, path, kind string }

// elsewhere is the place of a default backend.
var elsewhere = place{kind: "default"}

func everywhere(place) bool { return true }

func placeOf(rule networkingv1.IngressRule, path networkingv1.HTTPIngressPath) place {
	return place{rule.Host, path.Path, string(ptr.Deref(path.PathType, ""))}
}

// placesOf are those that an Ingress has backends for.
func placesOf(o *networkingv1.Ingress) map[place]bool {
	out := map[place]bool{elsewhere: o.Spec.DefaultBackend != nil}
	for _, rule := range o.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, path := range rule.HTTP.Paths {
			out[placeOf(rule, path)] = true
		}
	}
	return out
}

// canaryIngress is CanaryIngress for a share, at some of the places.
func canaryIngress(user *networkingv1.Ingress, s Setup, share ingressShare, at func(place) bool) *networkingv1.Ingress {
	if user == nil || share.none() {
		return nil
	}
	spec, leads := canaryIngressSpec(user, s, at)
	if !leads {
		return nil
	}
	c := &networkingv1.Ingress{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: KindIngress},
		ObjectMeta: metav1.ObjectMeta{
			Name: canaryName(user.Name), Namespace: s.Namespace,
			Labels:          WithoutToolMarks(user.Labels),
			Annotations:     without(WithoutToolMarks(user.Annotations), ingressMarks),
			OwnerReferences: []metav1.OwnerReference{s.Owner},
		},
		Spec: spec,
	}
	c.Labels[RoleLabel], c.Labels[StableLabel] = RoleCanary, s.Stable
	maps.DeleteFunc(c.Annotations, func(k, _ string) bool { return isConvention(k) })
	if spec.IngressClassName != nil {
		delete(c.Annotations, ingressClass)
	}
	maps.Copy(c.Annotations, share.annotations())
	return c
}

// canaryIngressSpec is the user's, reduced to what leads to the stable Service, and whether anything does. The convention
// takes class and TLS from the user's Ingress; a controller that does not finds them in the canary's.
func canaryIngressSpec(user *networkingv1.Ingress, s Setup, at func(place) bool) (out networkingv1.IngressSpec, leads bool) {
	from := user.Spec.DeepCopy()
	out = networkingv1.IngressSpec{IngressClassName: from.IngressClassName, TLS: from.TLS}
	if b := from.DefaultBackend; b != nil && at(elsewhere) && redirect(b, s) {
		out.DefaultBackend = b
	}
	for _, rule := range from.Rules {
		if rule.HTTP == nil {
			continue
		}
		rule.HTTP.Paths = slices.DeleteFunc(rule.HTTP.Paths, func(path networkingv1.HTTPIngressPath) bool {
			return !at(placeOf(rule, path)) || !redirect(&path.Backend, s)
		})
		if len(rule.HTTP.Paths) > 0 {
			out.Rules = append(out.Rules, rule)
		}
	}
	return out, out.DefaultBackend != nil || len(out.Rules) > 0
}

// redirect makes a backend lead to the canary, if it leads to the stable Service.
func redirect(b *networkingv1.IngressBackend, s Setup) bool {
	if b.Service == nil || b.Service.Name != s.Policy.StableService {
		return false
	}
	b.Service.Name = s.Policy.CanaryService
	return true
}

// ingressDrift returns the merge patch that makes have what want asks for, empty if it is so. Labels and annotations
// that others added stay, but not those of the convention: each changes what the others mean.
func ingressDrift(have, want *networkingv1.Ingress) (patch, error) {
	old, err := toJSON(have)
	if err != nil {
		return nil, err
	}
	next, err := toJSON(want)
	if err != nil {
		return nil, err
	}
	haveSpec, _ := old["spec"].(object)
	wantSpec, _ := next["spec"].(object)
	p := patch{}
	if diff := mergePatch(haveSpec, wantSpec); len(diff) > 0 {
		p.set(diff, "spec")
	}
	for k := range have.Annotations {
		if _, wanted := want.Annotations[k]; !wanted && isConvention(k) {
			p.set(nil, "metadata", "annotations", k)
		}
	}
	p.copyMarks(have, want)
	return p, nil
}

// checkIngress sees to it that there is something to share, and room for the canary's Ingress.
func checkIngress(s Setup, name string, w World) error {
	user, key := w.Ingresses[name], Key{KindIngress, name}
	if user == nil {
		return missing(s, key)
	}
	if user.Annotations[canaryMark] == "true" {
		return unusable("%s is itself a canary (annotation %s), and there can't be a canary of it: name the Ingress that it stands beside", key, canaryMark)
	}
	if _, leads := canaryIngressSpec(user, s, everywhere); !leads {
		return unusable("%s has no backend that is Service %s, so there is nothing to split: add one, or take the Ingress out of the policy", key, s.Policy.StableService)
	}
	if have := w.Ingresses[canaryName(name)]; have != nil && !madeFor(have, s) {
		return takenIngress(s, name, have)
	}
	return nil
}

// takenIngress is the error about an Ingress that stands where the canary's belongs. A release of another workload that
// shares the user's Ingress may have put it there.
func takenIngress(s Setup, name string, have *networkingv1.Ingress) error {
	otherwise := "rename Ingress " + name
	if other := have.Labels[StableLabel]; have.Labels[RoleLabel] == RoleCanary && other != "" {
		otherwise = fmt.Sprintf("wait for the release of %s, which shares Ingress %s, or give each an Ingress of its own", other, name)
	}
	return taken(s, Key{KindIngress, have.Name}, otherwise)
}

// retreatIngress returns the canary's Ingress as desired, but with no place, weight or header that it does not have.
func retreatIngress(user, have *networkingv1.Ingress, s Setup, d Desired) *networkingv1.Ingress {
	known := placesOf(have)
	return canaryIngress(user, s, shareWithin(d, shareOf(have.Annotations)), func(p place) bool { return known[p] })
}

// ingressWrite is what is due on the canary's Ingress beside one of the user's. With less, no more than there is: what
// can be done whatever the state of the canary.
func ingressWrite(s Setup, d Desired, w World, name string, less bool) (*Write, error) {
	user, have := w.Ingresses[name], w.Ingresses[canaryName(name)]
	if have != nil && have.DeletionTimestamp != nil {
		return none() // it will be made again once it is gone
	}
	ours := have != nil && madeFor(have, s)
	var want *networkingv1.Ingress
	switch {
	case !less:
		want = CanaryIngress(user, s, d)
	case ours:
		want = retreatIngress(user, have, s, d)
	}
	key := Key{KindIngress, canaryName(name)}
	switch {
	case want == nil && !ours:
		return none()
	case want == nil:
		return deleteOf(key, have, "no request goes to the canary"), nil
	case have == nil:
		return createOf(key, want, fmt.Sprintf("%d %% to the canary", d.Weight))
	case !ours:
		return nil, takenIngress(s, name, have)
	case !ownedBy(have, s):
		return deleteOf(key, have, "it belongs to an earlier workload of the same name"), nil
	}
	p, err := ingressDrift(have, want)
	if err != nil || len(p) == 0 {
		return nil, err
	}
	return patchOf(key, have, p, fmt.Sprintf("from %d %% to the canary towards %d %%", shareOf(have.Annotations).weight, d.Weight)), nil
}
