// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Snapshot is everything that the rules judge.
type Snapshot struct {
	// Workload is the LeaderWorkerSet. It must not be modified.
	Workload *lws.LeaderWorkerSet
	// Rolling is the user's own rolling update configuration, whatever hold is in force.
	Rolling lws.RollingUpdateConfiguration
	// Revision is what its groups run. Empty: not known.
	Revision string
	// Policy is the release that is to come. Its style is unspecified for the workload's own rolling update.
	Policy record.Policy
	// Force begins a blue-green release although a quota does not hold it.
	Force bool
	// Expect is what no object says.
	Expect Expectations

	// What is around the workload, in its namespace.
	Services []*corev1.Service
	Budgets  []*policyv1.PodDisruptionBudget
	Quotas   []*corev1.ResourceQuota
	// Claims are the PersistentVolumeClaims that the templates name, as far as they exist.
	Claims []*corev1.PersistentVolumeClaim
	// Autoscalers are those that scale the workload.
	Autoscalers []*pb.ObjectRef
	// Room is what the nodes have left.
	Room capacity.Room

	// Unseen are the sources that were not looked at, with the reason.
	Unseen map[Source]string
}

// Expectations are what no object in the cluster says.
type Expectations struct {
	// LongestRequest is how long the longest request takes. Zero: not known.
	LongestRequest time.Duration
	// EndpointPropagation is how long it takes until nobody sends requests to a pod that goes. Zero: DefaultPropagation.
	EndpointPropagation time.Duration
	// TopologyKeys are the node labels over whose values leaders are to be spread.
	TopologyKeys []string
}

// DefaultPropagation is how long proxies and gateways may take to hear that a pod goes, in a cluster that is not overloaded.
const DefaultPropagation = 5 * time.Second

// LongestRequestUnknown is why LongestRequests was not looked at where nobody said.
const LongestRequestUnknown = "nobody said how long it takes (--longest-request)"

// Source is something that a rule has to look at, as people call it.
type Source string

// What rules look at besides the workload's own spec.
const (
	Status          Source = "the workload's status"
	Services        Source = "Services"
	Budgets         Source = "PodDisruptionBudgets"
	Quotas          Source = "ResourceQuotas"
	Claims          Source = "PersistentVolumeClaims"
	Autoscalers     Source = "autoscalers"
	Nodes           Source = "nodes"
	LongestRequests Source = "the longest request"
)

// replicas is how many groups there are to be.
func (s *Snapshot) replicas() int { return replicasOf(s.Workload) }

// peak is how many groups come on top.
func (s *Snapshot) peak() capacity.Peak { return capacity.PeakOf(s.Policy, s.Rolling, s.replicas()) }

// need is what they take.
func (s *Snapshot) need() capacity.Need {
	n := capacity.Need{
		Template: s.Workload.Spec.LeaderWorkerTemplate, Network: s.Workload.Spec.NetworkConfig, Groups: s.peak().Groups(),
	}
	if s.peak().Added > 0 {
		n.Sets = 1
	}
	if s.Policy.Traffic != nil {
		n.Services = 1
	}
	return n
}

// style is the policy's, in words.
func (s *Snapshot) style() string {
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
