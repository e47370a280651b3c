// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// scalerIndex finds autoscalers by the workload that they scale or are held for.
	scalerIndex = "workload"
	// discoveryPeriod is how often the discovery of an API is retried while it fails.
	discoveryPeriod = 10 * time.Second
)

// Autoscalers are the caches of HorizontalPodAutoscalers and ScaledObjects, a few hundred bytes per object. They are filled from
// the start, since an autoscaler may still be held for a release that is over, or for a workload that no longer exists. Only
// blue-green releases wait for them, so a driver that lacks the permission serves all other styles.
type Autoscalers struct {
	hpas, scaled *informer.Informer
}

func (o *Observer) newAutoscalers() *Autoscalers {
	core, client, namespace := o.config.Core, o.config.Dynamic, o.config.Namespace
	notify := func(s *autoscaler.Autoscaler) {
		if s != nil {
			for _, key := range scaledWorkloads(s) {
				o.autoscalerChanged(key)
			}
		}
	}
	a := &Autoscalers{}
	config := informer.Config{
		Source: informer.NewSource(autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"), core,
			core.AutoscalingV2().HorizontalPodAutoscalers(namespace), ""),
		Example: &autoscalingv2.HorizontalPodAutoscaler{}, Indexers: cache.Indexers{scalerIndex: informer.Index(scalerKeys)}, Transform: informer.Transform(autoscaler.OfHPA), Changed: o.allChanged,
		Handler: informer.OnChange(func(before, after *autoscaler.Autoscaler) {
			// The status changes all the time. sameScaler compares what a release depends on.
			if before != nil && after != nil && sameScaler(before, after) {
				return
			}
			if after != nil && scaledObject(after) != "" {
				a.scaled.Recheck() // KEDA may have been installed since this driver started: it scales by the HPAs that it creates
			}
			// An autoscaler that changed its target concerns both workloads.
			notify(before)
			notify(after)
		}),
	}
	a.hpas = informer.New(config)
	config.Source = informer.NewSource(autoscaler.ScaledObjects, client, client.Resource(autoscaler.ScaledObjects).Namespace(namespace), "")
	config.Example, config.Transform = &unstructured.Unstructured{}, informer.Transform(autoscaler.OfScaledObject)
	config.Discovery, config.RetryPeriod = core.Discovery(), discoveryPeriod
	a.scaled = informer.New(config)
	return a
}

func (a *Autoscalers) sources() []*informer.Source {
	return []*informer.Source{a.hpas.Source(), a.scaled.Source()}
}

// scaling returns the autoscalers of targets, those that are held for the workload, and why the list may be incomplete, nil if it is not.
func (a *Autoscalers) scaling(key types.NamespacedName, targets ...string) (found []plan.Autoscaler, unscanned error) {
	for _, c := range []*informer.Informer{a.scaled, a.hpas} {
		if err := c.Err(); err != nil {
			unscanned = ContractError(err)
		}
	}
	byName := map[string]int{} // indices of ScaledObjects in found
	// ScaledObjects come first: an HPA that KEDA made is reported as part of its ScaledObject.
	for _, s := range autoscalersOf(a.scaled, key, targets) {
		byName[s.Name] = len(found)
		found = append(found, describeScaler(s, targets))
	}
	for _, s := range autoscalersOf(a.hpas, key, targets) {
		owner := scaledObject(s)
		if owner == "" {
			found = append(found, describeScaler(s, targets))
			continue
		}
		// KEDA manages it and would revert any other write.
		i, known := byName[owner]
		if !known {
			if unscanned == nil {
				unscanned = drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
					"HorizontalPodAutoscaler %s is controlled by ScaledObject %s, which is not in the cache", s.Name, owner)
			}
			continue
		}
		found[i].Limited = s.Limited
		// KEDA changes its HPA a moment after its ScaledObject, so a held direction may still scale.
		if s.Scales.Beyond(found[i].Directions) {
			found[i].Lingers = fmt.Sprintf("%s %s, which KEDA made for it,", autoscaler.KindHPA, s.Name)
		}
	}
	slices.SortFunc(found, func(a, b plan.Autoscaler) int { return strings.Compare(a.String(), b.String()) })
	return found, unscanned
}

// autoscalersOf returns the cached autoscalers of targets, and those that are held for the workload.
func autoscalersOf(c *informer.Informer, key types.NamespacedName, targets []string) (all []*autoscaler.Autoscaler) {
	for _, name := range append([]string{key.Name}, targets...) {
		for _, s := range informer.List[*autoscaler.Autoscaler](c, scalerIndex, types.NamespacedName{Namespace: key.Namespace, Name: name}.String()) {
			// An autoscaler may have both names: that of the workload, and that of its target.
			if !slices.ContainsFunc(all, func(known *autoscaler.Autoscaler) bool { return known.Name == s.Name }) {
				all = append(all, s)
			}
		}
	}
	return all
}

// Pending reports whether the caches are still being filled.
func (a *Autoscalers) Pending() bool { return a.hpas.Pending() || a.scaled.Pending() }

// Get returns an autoscaler of a kind from its cache, nil if there is none.
func (a *Autoscalers) Get(kind string, key types.NamespacedName) *autoscaler.Autoscaler {
	return informer.Get[*autoscaler.Autoscaler](a.cacheOf(kind), key)
}

// Resource returns the name of the resource of a kind, such as "horizontalpodautoscalers".
func (a *Autoscalers) Resource(kind string) string { return a.cacheOf(kind).Source().Resource.Resource }

func (a *Autoscalers) cacheOf(kind string) *informer.Informer {
	if kind == autoscaler.KindScaledObject {
		return a.scaled
	}
	return a.hpas
}

// scaledObject returns the name of the ScaledObject that controls an autoscaler, "" if none does.
func scaledObject(a *autoscaler.Autoscaler) string {
	return controllerOf(a, autoscaler.ScaledObjects.Group, autoscaler.KindScaledObject)
}

func describeScaler(a *autoscaler.Autoscaler, targets []string) plan.Autoscaler {
	v := plan.Autoscaler{
		Kind: a.Kind, Name: a.Name, Targets: slices.Contains(targets, a.Workload), Directions: a.Scales, ToZero: a.ToZero, Max: a.Max, Limited: a.Limited,
	}
	note, err := autoscaler.ReadNote(a.Annotations)
	if err != nil {
		v.Unreadable = err.Error()
	}
	if note != nil {
		v.Held = note.Hold
	}
	return v
}

// scaledWorkloads returns the workloads that an autoscaler targets or is held for.
func scaledWorkloads(a *autoscaler.Autoscaler) []types.NamespacedName {
	var all []types.NamespacedName
	add := func(name string) {
		key := types.NamespacedName{Namespace: a.Namespace, Name: name}
		if name != "" && !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	add(a.Workload)
	if note, err := autoscaler.ReadNote(a.Annotations); err == nil && note != nil {
		add(note.Workload)
	}
	return all
}

func scalerKeys(s *autoscaler.Autoscaler) (keys []string) {
	for _, key := range scaledWorkloads(s) {
		keys = append(keys, key.String())
	}
	return keys
}

// sameScaler reports whether nothing changed that a release depends on.
func sameScaler(before, after *autoscaler.Autoscaler) bool {
	return before.UID == after.UID && before.State == after.State && scaledObject(before) == scaledObject(after) &&
		before.Annotations[autoscaler.NoteAnnotation] == after.Annotations[autoscaler.NoteAnnotation]
}

// readAutoscalers reads the autoscalers of the workload and of its successor.
func (o *Observer) readAutoscalers(s *Snapshot) {
	var err error
	s.Autoscalers, err = o.Autoscalers.scaling(s.Key, s.Key.Name)
	s.Unscanned = drivererr.ProblemOf(err)
	next, ok := successor(s.Key, s.Record)
	if !ok || s.SuccessorForeign {
		return
	}
	successors, _ := o.Autoscalers.scaling(next, next.Name)
	for _, a := range successors {
		// It is held for the successor and scales something else.
		if !a.Targets {
			continue
		}
		a.Targets, a.Passed = false, true
		s.Autoscalers = slices.DeleteFunc(s.Autoscalers, func(b plan.Autoscaler) bool { return a.Kind == b.Kind && a.Name == b.Name })
		s.Autoscalers = append(s.Autoscalers, a)
	}
	slices.SortFunc(s.Autoscalers, func(a, b plan.Autoscaler) int { return strings.Compare(a.String(), b.String()) })
}
