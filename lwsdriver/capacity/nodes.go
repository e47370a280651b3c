// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"maps"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Free is the free capacity of a cluster's nodes.
type Free struct {
	nodes  []*node
	byName map[string]*node // while it is filled
}

// node is a node and its free capacity.
type node struct {
	*corev1.Node

	left corev1.ResourceList
	// taken are the namespaces of the LeaderWorkerSets of which a group runs on it.
	taken []string
}

// FreeOf returns what pods leave free on nodes.
func FreeOf(nodes []*corev1.Node, pods []*corev1.Pod) Free {
	var r Free
	for _, n := range nodes {
		r.AddNode(n)
	}
	for _, p := range pods {
		r.AddPod(p)
	}
	return r
}

// AddNode adds what a node has, and does not keep the node. Unschedulable and unready nodes are left out.
func (r *Free) AddNode(n *corev1.Node) {
	if n.Spec.Unschedulable || !isReady(n) {
		return
	}
	if r.byName == nil {
		r.byName = map[string]*node{}
	}
	// Only what the scheduling rules read stays: a cluster may have thousands of nodes.
	own := &node{Node: &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}, Spec: corev1.NodeSpec{Taints: n.Spec.Taints},
	}, left: n.Status.Allocatable.DeepCopy()}
	r.nodes, r.byName[n.Name] = append(r.nodes, own), own
}

// AddPod takes what a pod has of its node, which was added before.
func (r *Free) AddPod(p *corev1.Pod) {
	own := r.byName[p.Spec.NodeName]
	if own == nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return
	}
	own.take(podDemand(p))
	// Exclusive placement keeps off the pods of its namespace with this label, which every group has.
	if p.Labels[lws.GroupUniqueHashLabelKey] != "" && !slices.Contains(own.taken, p.Namespace) {
		own.taken = append(own.taken, p.Namespace)
	}
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return len(n.Status.Conditions) == 0 // a manifest has no conditions
}

// Placement is how many groups fit, and which resources the first that did not fit lacked.
type Placement struct {
	Placed int
	// Suited is how many nodes the pods may run on by labels, affinity and taints.
	Suited int
	// Short are the resources of which no suited node had enough for the next pod. It is empty if not all groups were placed but
	// each node lacked another resource.
	Short []corev1.ResourceName
	// Exclusive is the node label of which that group needs a value for itself. Empty means none.
	Exclusive string
}

// Place puts groups on nodes, one after the other, larger pods first, each pod on the suited node with the least free capacity
// that fits, and one role after the other.
//
// It is not a scheduler: it knows requests, node selectors, required node affinity and taints, but not spreading, affinity
// between pods, ports, volumes, preemption, or what a cluster autoscaler would add. So a group that does not fit here will
// hardly be scheduled, and a group that fits may still wait.
func (r Free) Place(n Need) (out Placement) {
	// The capacity is shared by all callers of half a minute.
	r = r.clone()
	for _, part := range n.Parts() {
		p, placed := r.place(part), out.Placed
		out = p
		if out.Placed += placed; p.Placed < part.Groups {
			break
		}
	}
	return out
}

// place puts the groups of one role on nodes, and takes what they request.
func (r Free) place(n Need) Placement {
	pods := n.podsOfGroup()
	suited := make([][]*node, len(pods))
	out, names := Placement{Exclusive: n.Exclusive}, map[string]bool{}
	for i, p := range pods {
		suited[i] = r.suited(p.pod)
		for _, s := range suited[i] {
			names[s.Name] = true
		}
	}
	out.Suited = len(names)
	free := r.freeDomains(n.Exclusive, n.Namespace)
	for range n.Groups {
		domain, short, ok := placeGroup(pods, suited, n.Exclusive, &free)
		if short != nil {
			out.Short = short
		}
		if !ok {
			return out
		}
		// Exclusive placement gives a group its whole domain, such as a rack.
		for _, node := range r.nodes {
			if n.Exclusive != "" && node.Labels[n.Exclusive] == domain {
				node.taken = append(slices.Clip(node.taken), n.Namespace)
			}
		}
		out.Placed++
	}
	out.Short = nil
	return out
}

// clone returns a copy to be filled.
func (r Free) clone() Free {
	out := Free{nodes: make([]*node, 0, len(r.nodes))}
	for _, n := range r.nodes {
		out.nodes = append(out.nodes, &node{Node: n.Node, left: n.left.DeepCopy(), taken: n.taken})
	}
	return out
}

// podsOfGroup returns the pods of one group, the largest first.
func (n Need) podsOfGroup() []alike {
	one := n
	one.Groups = 1
	all := one.ofRole()
	slices.SortStableFunc(all, func(a, b alike) int { return -compareDemands(podDemand(a.pod), podDemand(b.pod)) })
	return all
}

// compareDemands compares two demands, devices first, since they are scarce.
func compareDemands(a, b corev1.ResourceList) int {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return compareResources(slices.SortedFunc(maps.Keys(all), devicesFirst), a, b)
}

// compareResources compares what two lists have of resources, the first one first.
func compareResources(names []corev1.ResourceName, a, b corev1.ResourceList) int {
	for _, name := range names {
		x, y := a[name], b[name]
		if c := x.Cmp(y); c != 0 {
			return c
		}
	}
	return 0
}

// podDemand is what a pod takes of a node.
func podDemand(p *corev1.Pod) corev1.ResourceList {
	d := podRequests(p)
	d[corev1.ResourcePods] = oneObject()
	return d
}

// suited returns the nodes that a pod may run on, whatever their free capacity.
func (r Free) suited(p *corev1.Pod) []*node {
	required := nodeaffinity.GetRequiredNodeAffinity(p)
	var out []*node
	for _, n := range r.nodes {
		match, err := required.Match(n.Node)
		_, tainted := schedulinghelper.FindMatchingUntoleratedTaint(logr.Discard(), n.Spec.Taints, p.Spec.Tolerations, keepsOut, true)
		if err == nil && match && !tainted {
			out = append(out, n)
		}
	}
	return out
}

func keepsOut(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// freeDomains returns the values of a node label that no group of the namespace has yet, sorted.
func (r Free) freeDomains(key, namespace string) []string {
	values := map[string]bool{}
	for _, n := range r.nodes {
		if value, ok := n.Labels[key]; ok {
			was, seen := values[value]
			// One node with a group takes the value for all nodes that have it.
			values[value] = !slices.Contains(n.taken, namespace) && (was || !seen)
		}
	}
	maps.DeleteFunc(values, func(_ string, free bool) bool { return !free })
	return slices.Sorted(maps.Keys(values))
}

// placeGroup places one group: anywhere, or in the first of the free domains that holds it. The domains before lack what is short, for every
// group of the role, and are not free any more.
func placeGroup(pods []alike, suited [][]*node, exclusive string, free *[]string) (domain string, short []corev1.ResourceName, ok bool) {
	if exclusive == "" {
		short, ok = placePods(pods, suited, func(*node) bool { return true })
		return "", short, ok
	}
	// A group lies within one domain, so domains are tried one by one.
	for !ok && len(*free) > 0 {
		domain, *free = (*free)[0], (*free)[1:]
		var lacks []corev1.ResourceName
		if lacks, ok = placePods(pods, suited, func(n *node) bool { return n.Labels[exclusive] == domain }); !ok {
			short = lacks
		}
	}
	return domain, short, ok
}

// placePods places the pods of a group, or none of them: a smaller group of another role may fit there.
func placePods(pods []alike, suited [][]*node, in func(*node) bool) (short []corev1.ResourceName, ok bool) {
	left := map[*node]corev1.ResourceList{} // before the group
	for i, p := range pods {
		want := podDemand(p.pod)
		for range p.count { // ends when the nodes are full
			best := tightestNode(want, suited[i], in)
			if best == nil {
				short = missingResources(want, suited[i], in)
				for n, before := range left {
					n.left = before
				}
				return short, false
			}
			if _, known := left[best]; !known {
				left[best] = best.left.DeepCopy()
			}
			best.take(want)
		}
	}
	return nil, true
}

// tightestNode returns the fitting node with the least free capacity of the scarcest resource, nil if the pod fits none.
func tightestNode(want corev1.ResourceList, nodes []*node, in func(*node) bool) *node {
	names := slices.SortedFunc(maps.Keys(want), devicesFirst)
	var best *node
	for _, n := range nodes {
		// The tightest node is filled first, so that large groups still find whole nodes.
		if in(n) && n.holds(want) && (best == nil || compareResources(names, n.left, best.left) < 0) {
			best = n
		}
	}
	return best
}

// missingResources returns the resources of which no node has enough.
func missingResources(want corev1.ResourceList, nodes []*node, in func(*node) bool) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range slices.Sorted(maps.Keys(want)) {
		enough := slices.ContainsFunc(nodes, func(n *node) bool { return in(n) && n.holds(corev1.ResourceList{name: want[name]}) })
		if !enough {
			out = append(out, name)
		}
	}
	return out
}

func (n *node) holds(want corev1.ResourceList) bool {
	for name, q := range want {
		// Kubernetes places a request of zero on a node without the resource, too.
		if left := n.left[name]; !q.IsZero() && q.Cmp(left) > 0 {
			return false
		}
	}
	return true
}

func (n *node) take(d corev1.ResourceList) {
	if n.left == nil {
		n.left = corev1.ResourceList{}
	}
	for name, q := range d {
		left := n.left[name]
		left.Sub(q)
		n.left[name] = left
	}
}
