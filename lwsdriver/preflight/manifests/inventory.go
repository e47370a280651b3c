// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Rolling returns the user's own rolling update configuration: the manifest's with the defaults of LWS's webhook, or the one in the
// record of a workload under hold.
func Rolling(w *lws.LeaderWorkerSet) lws.RollingUpdateConfiguration {
	if rec, err := record.DecodeRecord(w.Annotations[record.RecordAnnotation]); err == nil {
		return rec.Saved
	}
	return ptr.Deref(w.Spec.RolloutStrategy.RollingUpdateConfiguration,
		lws.RollingUpdateConfiguration{MaxUnavailable: intstr.FromInt32(1), Partition: ptr.To[int32](0)})
}

// Inventory returns what the set contains about one of its workloads. A kind without objects counts as not read: the cluster may
// have some.
func (s *Set) Inventory(w *lws.LeaderWorkerSet) (*preflight.Inventory, error) {
	roles, slicesOf, err := s.roles(w)
	if err != nil {
		return nil, err
	}
	out := &preflight.Inventory{Workload: w, Rolling: Rolling(w), Roles: roles, Slices: slicesOf, Unseen: map[preflight.Source]string{}}
	if len(roles) > 0 {
		out.Rolling = lws.RollingUpdateConfiguration{} // its children are replaced
	}
	r := &reader{set: s, inventory: out, namespace: w.Namespace}
	out.Services = read[corev1.Service](r, preflight.Services, "Service")
	out.Budgets = read[policyv1.PodDisruptionBudget](r, preflight.Budgets, "PodDisruptionBudget")
	out.Quotas = read[corev1.ResourceQuota](r, preflight.Quotas, "ResourceQuota")
	out.Claims = read[corev1.PersistentVolumeClaim](r, preflight.Claims, "PersistentVolumeClaim")
	r.routes()
	out.Pools = readSome[unstructured.Unstructured](r, traffic.KindInferencePool)
	r.autoscalers()
	r.unsafeChanges()
	r.namespace = "" // nodes have none, and pods of all namespaces are on them
	nodes := read[corev1.Node](r, preflight.Nodes, "Node")
	pods, err := of[corev1.Pod](s, "Pod", "")
	r.err = cmp.Or(r.err, err)
	out.Free = capacity.FreeOf(nodes, pods)
	// A file saved from a cluster has the status.
	if len(w.Status.Conditions) == 0 {
		out.Unseen[preflight.Status] = "the manifest has none"
	}
	return out, r.err
}

// reader reads objects for an inventory and keeps the first error.
type reader struct {
	set       *Set
	inventory *preflight.Inventory
	namespace string
	err       error
}

// none records that the files have nothing of a source.
func (r *reader) none(source preflight.Source) {
	r.inventory.Unseen[source] = "there are none in the files"
}

func read[T any](r *reader, source preflight.Source, kind string) []*T {
	all := readSome[T](r, kind)
	if len(all) == 0 {
		r.none(source)
	}
	return all
}

// readSome is read for what a rule judges if it is there.
func readSome[T any](r *reader, kind string) []*T {
	all, err := of[T](r.set, kind, r.namespace)
	if err != nil && r.err == nil {
		r.err = err
	}
	return all
}

// routes reads both kinds of routes, of which the files need only one.
func (r *reader) routes() {
	for _, kind := range []string{traffic.KindHTTPRoute, traffic.KindGRPCRoute} {
		for _, o := range read[unstructured.Unstructured](r, preflight.Routes, kind) {
			r.inventory.Routes = append(r.inventory.Routes, traffic.Route{Key: traffic.Key{Kind: kind, Name: o.GetName()}, Object: o})
		}
	}
	if len(r.inventory.Routes) > 0 {
		delete(r.inventory.Unseen, preflight.Routes)
	}
}

// autoscalers finds what scales the workload.
func (r *reader) autoscalers() {
	r.none(preflight.Autoscalers)
	for _, o := range r.set.objects {
		if o.GetNamespace() != r.namespace {
			continue
		}
		var a *autoscaler.Autoscaler
		switch o.GetKind() {
		case autoscaler.KindScaledObject:
			a = autoscaler.OfScaledObject(o.Unstructured)
		case autoscaler.KindHPA:
			// These fields are the same in every version.
			hpa := &autoscalingv2.HorizontalPodAutoscaler{}
			ref, _, _ := unstructured.NestedMap(o.Object, "spec", "scaleTargetRef")
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(ref, &hpa.Spec.ScaleTargetRef); err != nil {
				continue
			}
			if n, found, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "minReplicas"); found && fmt.Sprint(n) == "0" {
				hpa.Spec.MinReplicas = ptr.To[int32](0)
			}
			a = autoscaler.OfHPA(hpa)
		default:
			continue
		}
		// Any autoscaler in the files shows that they were written down there.
		delete(r.inventory.Unseen, preflight.Autoscalers)
		if a.Workload == r.inventory.Workload.Name {
			r.inventory.Autoscalers = append(r.inventory.Autoscalers, plan.Autoscaler{Kind: o.GetKind(), Name: o.GetName(), ToZero: a.ToZero})
		}
	}
}

// priorityOf returns the priority class of leaders.
func priorityOf(t *lws.LeaderWorkerTemplate) string {
	return cmp.Or(t.LeaderTemplate, &t.WorkerTemplate).Spec.PriorityClassName
}

// unsafeChanges compares the template with the newest of LWS's ControllerRevisions that differs in a field that LWS reads from the
// spec, or in the priority of leaders: the template in the spec has one, too, once LWS has recorded it.
func (r *reader) unsafeChanges() {
	w := r.inventory.Workload
	all, err := of[appsv1.ControllerRevision](r.set, "ControllerRevision", r.namespace)
	if err != nil && r.err == nil {
		r.err = err
	}
	var newest int64
	for _, cr := range all {
		stored, err := history.Decode(cr)
		if cr.Labels[lws.SetNameLabelKey] != w.Name || cr.Revision <= newest || err != nil {
			continue
		}
		changes := plan.CompareTemplates(stored, record.TemplateOf(w))
		if len(changes) > 0 || priorityOf(&stored.LeaderWorkerTemplate) != priorityOf(&w.Spec.LeaderWorkerTemplate) {
			newest, r.inventory.Unsafe, r.inventory.Old = cr.Revision, changes, &stored.LeaderWorkerTemplate
		}
	}
}
