// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"strings"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func roomRules() []Rule {
	return []Rule{
		{
			ID: "QuotaExceeded", Whole: true, Severity: warning, Needs: Quotas, Applies: grows,
			Title: "A ResourceQuota does not hold the additional groups",
			Why:   "Pods beyond the quota are not created: a batch cannot complete, and a group that lacks one pod cannot serve while it keeps its GPUs",
			Details: "An error in a blue-green release: Initialize refuses it (`QUOTA_EXCEEDED`) unless forced. [Capacity](plan.md#quotas) " +
				"explains what is counted",
			Fix:   "Raise the quota, free resources, or release with STYLE_PARTITION, which needs no additional groups",
			Check: quotaExceeded,
		},
		{
			ID: "NodesLackRoom", Whole: true, Severity: warning, Needs: Nodes, Applies: grows,
			Title: "The nodes have no room for the additional groups",
			Why:   "Their pods stay Pending, and the release waits until its deadline. A partially scheduled group keeps its GPUs and cannot serve",
			Details: "Groups are placed one after the other, larger pods first, each pod on the node with the least free capacity that fits. " +
				"With LWS's `exclusive-topology` each group has its own domain. Requests, node selectors, required node affinity, taints, " +
				"cordoned and unready nodes are considered. Spreading, affinity between pods, ports, volumes, preemption, DRA devices and " +
				"cluster autoscaling are not, so passing is no guarantee",
			Fix: "Add nodes, free some, or release with smaller batches or STYLE_PARTITION. If a cluster autoscaler adds nodes, check that its " +
				"limit allows these",
			Check: nodesLackRoom,
		},
	}
}

func grows(s *Inventory) bool { return s.Need().Pods() > 0 }

// size returns the number of groups and pods that are needed.
func size(n capacity.Need) string {
	groups := "1 group"
	if all := n.AllGroups(); all != 1 {
		groups = fmt.Sprintf("%d groups", all)
	}
	return fmt.Sprintf("%s (%d pods)", groups, n.Pods())
}

func quotaExceeded(s *Inventory) []Hit {
	var hits []Hit
	need := s.Need()
	severity := warning
	if s.Policy.Style == pb.Style_STYLE_BLUE_GREEN && !s.Force {
		severity = severe // Initialize refuses it
	}
	for _, q := range s.Quotas {
		for _, short := range need.Shortages(q) {
			hits = append(hits, Hit{
				Object: &pb.ObjectRef{Kind: "ResourceQuota", Namespace: q.Namespace, Name: q.Name}, Field: field("spec.hard", string(short.Resource)),
				Message: fmt.Sprintf("%s more do not fit: %s", size(need), short), Severity: severity,
			})
		}
	}
	return hits
}

func nodesLackRoom(s *Inventory) []Hit {
	need := s.Need()
	p := s.Room.Place(need)
	if p.Placed >= need.AllGroups() {
		return nil
	}
	text := fmt.Sprintf("%s are added, and the nodes that they may run on (%d) have room for %d of them", size(need), p.Suited, p.Placed)
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
	return one(Hit{Field: templateField, Message: text})
}
