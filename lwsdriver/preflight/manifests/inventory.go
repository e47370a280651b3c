// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	"github.com/lockstep-rollouts/lockstep/plugin"
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

// Inventories returns what the set contains about each of its workloads, or about those with a name, in the order of the files.
func (s *Set) Inventories(name string) (all []*preflight.Inventory, err error) {
	for _, o := range s.objects {
		var out *preflight.Inventory
		switch o.GetKind() {
		case plugin.KindLeaderWorkerSet:
			out, err = leaderWorkerSet(o)
		case plugin.KindDisaggregatedSet:
			out, err = disaggregatedSet(o)
		default:
			continue
		}
		if err == nil && (name == "" || o.GetName() == name) {
			err = s.read(out)
			all = append(all, out)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// read reads what the set contains about the workload of an inventory. A kind without objects counts as not read: the cluster may have some.
func (s *Set) read(out *preflight.Inventory) error {
	out.Unseen = map[preflight.Source]string{}
	r := &reader{set: s, inventory: out, namespace: out.Workload.Namespace}
	out.Services = read[corev1.Service](r, preflight.Services, "Service")
	out.Budgets = read[policyv1.PodDisruptionBudget](r, preflight.Budgets, "PodDisruptionBudget")
	out.Quotas = read[corev1.ResourceQuota](r, preflight.Quotas, "ResourceQuota")
	out.Claims = read[corev1.PersistentVolumeClaim](r, preflight.Claims, "PersistentVolumeClaim")
	r.routes()
	out.Pools = readSome[unstructured.Unstructured](r, traffic.KindInferencePool)
	r.autoscalers()
	r.unsafeChanges()
	r.namespace = "" // nodes have none, and pods of all namespaces are on them
	out.Free = capacity.FreeOf(read[corev1.Node](r, preflight.Nodes, "Node"), readSome[corev1.Pod](r, "Pod"))
	// A file saved from a cluster has the status.
	if len(out.Workload.Status.Conditions) == 0 {
		out.Unseen[preflight.Status] = "the manifest has none"
	}
	return r.err
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
	r.err = cmp.Or(r.err, err)
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
	// What is read of an HPA is the same in every version.
	hpas, scaled := readSome[autoscalingv2.HorizontalPodAutoscaler](r, autoscaler.KindHPA), readSome[unstructured.Unstructured](r, autoscaler.KindScaledObject)
	all := make([]*autoscaler.Autoscaler, 0, len(hpas)+len(scaled))
	for _, o := range hpas {
		all = append(all, autoscaler.OfHPA(o))
	}
	for _, o := range scaled {
		all = append(all, autoscaler.OfScaledObject(o))
	}
	// Any autoscaler in the files shows that they were written down there.
	if len(all) == 0 {
		r.none(preflight.Autoscalers)
	}
	for _, a := range all {
		if a.Workload == r.inventory.Workload.Name {
			r.inventory.Autoscalers = append(r.inventory.Autoscalers, plan.Autoscaler{Kind: a.Kind, Name: a.Name, ToZero: a.ToZero})
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
	var newest int64
	for _, cr := range readSome[appsv1.ControllerRevision](r, "ControllerRevision") {
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
