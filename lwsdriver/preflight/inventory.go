// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Inventory is everything that the rules judge.
type Inventory struct {
	// Workload is the LeaderWorkerSet, or a DisaggregatedSet as one: its kind and metadata, with the spec of its entry role. It must not be
	// modified.
	Workload *lws.LeaderWorkerSet
	// Roles are those of a DisaggregatedSet, the entry role first, and Slices is how often it has them all. A LeaderWorkerSet has none.
	Roles  []Role
	Slices int
	// Rolling is the user's own rolling update configuration, also under hold.
	Rolling lws.RollingUpdateConfiguration
	// Revision is the one that its groups run. Empty means unknown.
	Revision string
	// Unsafe are the changes of the template that affect groups of the old one.
	Unsafe []plan.TemplateChange
	// Policy is that of the planned release. Its style is unspecified for the workload's own rolling update.
	Policy record.Policy
	// Force begins a blue-green release although it exceeds a quota.
	Force bool
	// Expect is what no object contains.
	Expect Expectations

	// Objects in the workload's namespace.
	Services []*corev1.Service
	Budgets  []*policyv1.PodDisruptionBudget
	Quotas   []*corev1.ResourceQuota
	// Claims are the existing PersistentVolumeClaims that the templates name.
	Claims []*corev1.PersistentVolumeClaim
	// Autoscalers are those that scale the workload.
	Autoscalers []Autoscaler
	// Routes are the HTTPRoutes and GRPCRoutes of the policy, and possibly others.
	Routes []traffic.Route
	// Room is the free capacity of the nodes.
	Room capacity.Room

	// Unseen are the sources that were not read, with the reason.
	Unseen map[Source]string

	// part is set in the inventory of a role.
	part *part
}

// Expectations are what no object in the cluster contains.
type Expectations struct {
	// LongestRequest is how long the longest request takes. Zero means unknown.
	LongestRequest time.Duration
	// EndpointPropagation is how long clients may send requests to a pod that is being deleted. Zero means DefaultPropagation.
	EndpointPropagation time.Duration
	// TopologyKeys are the node labels over whose values leaders are to be spread.
	TopologyKeys []string
	// HeaderRoutes: the release routes requests by header or cookie.
	HeaderRoutes bool
}

// DefaultPropagation is how long proxies and gateways may take to remove an endpoint, in a cluster that is not overloaded.
const DefaultPropagation = 5 * time.Second

// LongestRequestUnknown is why LongestRequests was not read where it was not set.
const LongestRequestUnknown = "how long it takes was not set (--longest-request)"

// Source is something that a rule reads, as messages call it.
type Source string

// What rules read besides the workload's own spec.
const (
	Status          Source = "the workload's status"
	Services        Source = "Services"
	Budgets         Source = "PodDisruptionBudgets"
	Quotas          Source = "ResourceQuotas"
	Claims          Source = "PersistentVolumeClaims"
	Autoscalers     Source = "autoscalers"
	Nodes           Source = "nodes"
	Routes          Source = "routes"
	LongestRequests Source = "the longest request"
)

// replicas returns the number of groups in the spec, in all slices.
func (s *Inventory) replicas() int { return replicasOf(s.Workload) * max(s.Slices, 1) }

// Peak returns how many groups a release adds at its peak: those of a role, and units of a DisaggregatedSet.
func (s *Inventory) Peak() capacity.Peak {
	if s.part != nil {
		return s.part.peak
	}
	return capacity.PeakOf(s.Policy, s.Rolling, s.replicas())
}

// Need returns the groups of the peak, and so what they request.
func (s *Inventory) Need() capacity.Need {
	n := capacity.Need{
		Template: s.Workload.Spec.LeaderWorkerTemplate, Network: s.Workload.Spec.NetworkConfig, Groups: s.Peak().Groups(),
		Exclusive: s.Workload.Annotations[lws.ExclusiveKeyAnnotationKey],
	}
	if len(s.Roles) > 0 {
		n = s.role(0).Need()
	}
	for i := 1; i < len(s.Roles); i++ {
		n.Others = append(n.Others, s.role(i).Need())
	}
	if s.Peak().Added > 0 {
		n.Sets = 1
	}
	if s.Policy.Traffic != nil && s.part == nil {
		n.Services = 1
	}
	return n
}

// style returns the policy's style for messages.
func (s *Inventory) style() string {
	switch s.Policy.Style {
	case pb.Style_STYLE_CANARY:
		return "a canary release"
	case pb.Style_STYLE_BLUE_GREEN:
		return "a blue-green release"
	case pb.Style_STYLE_PARTITION:
		return "a release in place"
	default:
		return "the rolling update"
	}
}

// Autoscaler is an autoscaler of the workload.
type Autoscaler struct {
	Object *pb.ObjectRef
	// ToZero: it may remove the last group.
	ToZero bool
}
