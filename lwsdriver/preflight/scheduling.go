// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// QuotaExceeded is the rule of quotas.
const QuotaExceeded = "QuotaExceeded"

var capacityRules = []Rule{
	{
		ID: QuotaExceeded, Whole: true, Severity: warning, Needs: Quotas, Applies: addsGroups,
		Title: "A ResourceQuota does not hold the additional groups",
		Why:   "Pods beyond the quota are not created: a batch cannot complete, and a group that lacks one pod cannot serve while it keeps its GPUs",
		Details: "An error in a blue-green release: Initialize refuses it (`QUOTA_EXCEEDED`) unless forced. [Capacity](plan.md#quotas) " +
			"explains what is counted",
		Fix: "Raise the quota, free resources, or release in style partition, which needs no additional groups",
		Check: func(s *Inventory, report func(Hit)) {
			need := s.Need()
			severity := warning
			if s.Policy.Style == pb.Style_STYLE_BLUE_GREEN && !s.Force {
				severity = severe // Initialize refuses it
			}
			for _, q := range s.Quotas {
				for _, short := range need.Shortages(q) {
					report(Hit{
						Object: &pb.ObjectRef{Kind: "ResourceQuota", Namespace: q.Namespace, Name: q.Name}, Field: keyPath("spec.hard", string(short.Resource)),
						Message: fmt.Sprintf("%s more do not fit: %s", sizeText(need), short), Severity: severity,
					})
				}
			}
		},
	},
	{
		ID: "NodesLackCapacity", Whole: true, Severity: warning, Needs: Nodes, Applies: addsGroups,
		Title: "The nodes have no room for the additional groups",
		Why:   "Their pods stay Pending, and the release waits until its deadline. A partially scheduled group keeps its GPUs and cannot serve",
		Details: "Groups are placed one after the other, larger pods first, each pod on the node with the least free capacity that fits. " +
			"With LWS's `exclusive-topology` each group of the namespace has its own domain. Requests, node selectors, required node affinity, taints, " +
			"cordoned and unready nodes are considered. Spreading, affinity between pods, ports, volumes, preemption, DRA devices and " +
			"cluster autoscaling are not, so passing is no guarantee. More than 5000 pods are not " +
			"placed: `nodes` counts as not read",
		Fix: "Add nodes, free some, or release with smaller batches or in style partition. If a cluster autoscaler adds nodes, check that its " +
			"limit allows these",
		Check: func(s *Inventory, report func(Hit)) {
			need := s.Need()
			p := s.Free.Place(need)
			if p.Placed >= need.AllGroups() {
				return
			}
			text := fmt.Sprintf("%s are added, and the nodes that they may run on (%d) have room for %d of them", sizeText(need), p.Suited, p.Placed)
			names := make([]string, 0, len(p.Short))
			for _, name := range p.Short {
				names = append(names, string(name))
			}
			switch {
			case p.Suited == 0:
				text += ": no node matches their selectors, affinity and tolerations"
			case len(names) > 0:
				text += ": the next one is short of " + strings.Join(names, ", ")
			case p.Exclusive != "":
				text += fmt.Sprintf(": each needs a value of %s for itself", p.Exclusive)
			}
			if list := capacity.Text(need.Requests()); list != "" {
				text += ". In all they request " + list
			}
			report(Hit{Field: templateField, Message: text})
		},
	},
	{
		ID: "PriorityRaised", Severity: warning, Applies: func(s *Inventory) bool { return s.Old != nil && s.Peak().Added > 0 },
		Title: "The additional groups have another priority class than the stable ones",
		Why: "If it is higher and the nodes are full, the scheduler evicts pods of stable groups, which still serve, to make room for the groups " +
			"that the release adds",
		Details: "The template is compared with that of the groups: with `-f` the files need LWS's ControllerRevisions. The values of the classes " +
			"are not read",
		Fix: "Check that the class is not of higher priority or has `preemptionPolicy: Never`, change it in a release of its own in style partition, or free nodes",
		Check: func(s *Inventory, report func(Hit)) {
			before := s.before().templates()
			for _, t := range s.templates() {
				class := t.Spec.PriorityClassName
				if class != "" && !slices.ContainsFunc(before, func(old template) bool { return old.Spec.PriorityClassName == class }) {
					report(Hit{
						Field:   t.field + ".spec.priorityClassName",
						Message: fmt.Sprintf("it is %s, and that of the stable groups is %s", class, cmp.Or(before[0].Spec.PriorityClassName, "not set")),
					})
				}
			}
		},
	},
}

func addsGroups(s *Inventory) bool { return s.Need().Pods() > 0 }

// sizeText returns the number of groups and pods that are needed.
func sizeText(n capacity.Need) string {
	return fmt.Sprintf("%s (%s)", plan.Counted(n.AllGroups(), "group", "groups"), plan.Counted(n.Pods(), "pod", "pods"))
}

var volumeRules = []Rule{{
	ID: "VolumeReadWriteOnce", Severity: warning, Needs: Claims, Applies: func(s *Inventory) bool { return len(ClaimNames(s)) > 0 },
	Title: "Groups share a volume that only one node can attach",
	Why: "A ReadWriteOnce volume is attached to one node, a ReadWriteOncePod one used by one pod: new groups on other nodes stay in " +
		"ContainerCreating while the old ones exist",
	Details: "It covers claims that the templates name, which all groups share. Claims of `volumeClaimTemplates` are one per pod. A " +
		"canary gets new, empty ones: what it caches there is loaded again",
	Fix: "Share a volume that many can read (ReadOnlyMany, ReadWriteMany), or give each pod its own by volumeClaimTemplates",
	Check: func(s *Inventory, report func(Hit)) {
		if s.replicas()*int(ptr.Deref(s.Workload.Spec.LeaderWorkerTemplate.Size, 1)) < 2 && s.Peak().Groups() == 0 {
			return // used by a single pod
		}
		names := ClaimNames(s)
		for _, c := range s.Claims {
			shared := slices.ContainsFunc(c.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
				return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
			})
			// A claim without access modes is a manifest that the API server refuses.
			if shared || len(c.Spec.AccessModes) == 0 || !slices.Contains(names, c.Name) || c.Namespace != s.Workload.Namespace {
				continue
			}
			report(Hit{
				Object: &pb.ObjectRef{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name}, Field: "spec.accessModes",
				Message: fmt.Sprintf("the pods of every group mount it, and it is %s", c.Spec.AccessModes[0]),
			})
		}
	},
}}

// ClaimNames returns the PersistentVolumeClaims that the templates name, sorted.
func ClaimNames(s *Inventory) []string {
	var names []string
	for _, t := range s.templates() {
		for _, v := range t.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				names = append(names, v.PersistentVolumeClaim.ClaimName)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var gateRules = []Rule{
	{
		ID: "QueueGatesGroups", Severity: warning,
		Title: "Kueue admits the groups",
		Why: "Each new group is a separate workload that waits for the quota of its queue, also when it replaces another. Another workload " +
			"may be admitted with the released quota, and the progress deadline keeps running meanwhile",
		Details: "Found by the label `kueue.x-k8s.io/queue-name` of the workload or its templates. Kueue's webhook refuses a template with other " +
			"requests, ports, node selectors, affinity, tolerations, priority, or another number of containers: delete and create the workload for it",
		Fix: "Check that the ClusterQueue (its nominalQuota or borrowing limit) admits the additional groups, and that nothing preempts them",
		Check: func(s *Inventory, report func(Hit)) {
			message := func(queue string) string {
				text := fmt.Sprintf("its groups wait for admission by queue %s", queue)
				if n := s.Peak().Groups(); n > 0 {
					text += fmt.Sprintf(", %d more than now at the peak of %s", n, s.style())
				}
				return text
			}
			if queue := s.Workload.Labels[queueLabel]; queue != "" {
				report(Hit{Field: keyPath("metadata.labels", queueLabel), Message: message(queue)})
				return
			}
			for _, t := range s.templates() {
				if queue := t.Labels[queueLabel]; queue != "" {
					report(Hit{Field: keyPath(t.field+".metadata.labels", queueLabel), Message: message(queue)})
				}
			}
		},
	},
	{
		ID: "GangSpansGroups", Severity: warning,
		Title: "All groups are in one gang",
		Why: "The templates name one PodGroup, so the pods of a release join the gang of those that run: its minimum may be met by old " +
			"groups while a new one is incomplete, or new ones wait for pods that are never created",
		Details: "Found by `scheduling.k8s.io/group-name` (Volcano), `scheduling.x-k8s.io/pod-group` and " +
			"`pod-group.scheduling.sigs.k8s.io` (coscheduling) in the metadata of the templates, and by `schedulingGroup` in their spec. " +
			"What LWS itself sets on pods is one gang per group, as intended",
		Fix: "Remove it from the templates, and let LeaderWorkerSet make one PodGroup per group (gangSchedulingManagement in its configuration)",
		Check: func(s *Inventory, report func(Hit)) {
			for _, t := range s.templates() {
				for _, m := range []meta{{"labels", t.Labels}, {"annotations", t.Annotations}} {
					for _, key := range slices.Sorted(maps.Keys(m.values)) {
						if slices.Contains(gangMarks, key) {
							report(Hit{Field: keyPath(t.field+".metadata."+m.name, key), Message: fmt.Sprintf("every pod of every group is in PodGroup %s", m.values[key])})
						}
					}
				}
				if g := t.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
					report(Hit{Field: t.field + ".spec.schedulingGroup.podGroupName", Message: fmt.Sprintf("every pod of every group is in PodGroup %s", *g.PodGroupName)})
				}
			}
		},
	},
}

// queueLabel names the Kueue queue of a workload.
const queueLabel = "kueue.x-k8s.io/queue-name"

// gangMarks are the labels and annotations by which gang schedulers know the gang of a pod.
var gangMarks = []string{"scheduling.k8s.io/group-name", "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/name"}

// meta is the labels or the annotations of an object.
type meta struct {
	name   string
	values map[string]string
}

// keyPath returns the path of a key of a map.
func keyPath(path, key string) string { return fmt.Sprintf("%s[%q]", path, key) }
