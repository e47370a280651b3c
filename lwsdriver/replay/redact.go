// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// redacted returns an observation without pod templates, and with digests of foreign annotations. It leads to the same
// decision: the planner only checks whether a template exists, and whether annotations are equal.
func redacted(o plan.Observation) plan.Observation {
	if o.Record != nil {
		next := withoutTemplate(*o.Record)
		o.Record = &next
	}
	if observed := o.Traffic; observed != nil {
		o.Traffic = redactedTraffic(observed)
	}
	return o
}

// redactedAction redacts a write.
func redactedAction(action plan.Action) plan.Action {
	switch a := action.(type) {
	case plan.SetStable:
		a.Record = withoutTemplate(a.Record)
		return a
	case plan.HandOver:
		a.Record = withoutTemplate(a.Record)
		return a
	case plan.RestoreTemplate:
		if a.Record != nil {
			next := withoutTemplate(*a.Record)
			a.Record = &next
		}
		return a
	}
	return action
}

func withoutTemplate(r record.Record) record.Record {
	if r.Release != nil && r.Release.StableTemplate != nil {
		next := *r.Release
		next.StableTemplate, r.Release = &record.Template{}, &next
	}
	return r
}

func redactedTraffic(o *traffic.Observed) *traffic.Observed {
	out := &traffic.Observed{Setup: o.Setup, World: o.World, Unread: o.Unread}
	w := &out.World
	for _, s := range []**corev1.Service{&w.Stable, &w.Canary, &w.Picker} {
		if *s != nil {
			*s = (*s).DeepCopy()
			redactMeta(*s)
		}
	}
	for _, p := range []**unstructured.Unstructured{&w.StablePool, &w.CanaryPool} {
		if *p != nil {
			*p = (*p).DeepCopy()
			redactMeta(*p)
		}
	}
	w.Routes = maps.Clone(w.Routes)
	for key, r := range w.Routes {
		w.Routes[key] = r.DeepCopy()
		redactMeta(w.Routes[key])
	}
	w.Ingresses = maps.Clone(w.Ingresses)
	for name, i := range w.Ingresses {
		var next *networkingv1.Ingress
		if i != nil {
			next = i.DeepCopy()
			redactMeta(next)
		}
		w.Ingresses[name] = next
	}
	return out
}

// redactMeta replaces the values of foreign annotations, and drops the fields of managers, but not their names.
func redactMeta(o metav1.Object) {
	annotations := maps.Clone(o.GetAnnotations())
	for key, value := range annotations {
		if !strings.HasPrefix(key, "lockstep.dev/") && !strings.HasPrefix(key, traffic.IngressPrefix) {
			sum := sha256.Sum256([]byte(value))
			annotations[key] = "sha256:" + hex.EncodeToString(sum[:8])
		}
	}
	o.SetAnnotations(annotations)
	traffic.StripFields(o)
}
