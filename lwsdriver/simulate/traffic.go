// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/model"
)

// A forecast needs only the shares of requests, so one Service and one route stand for whatever the policy names. Gateways
// follow at once.

// setup returns the traffic of the release.
func (w *world) setup() traffic.Setup {
	p := traffic.Policy{StableService: "service", CanaryService: "canary", Routes: []traffic.Key{{Kind: traffic.KindHTTPRoute, Name: "route"}}}
	of := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: w.name, UID: "workload"}}
	s := traffic.NewSetup(of, canaryName, p, nil)
	shifts := plan.InPlace(w.policy.Style) && len(w.children) > 0
	if plan.InPlace(w.policy.Style) && !shifts {
		var updated []string
		for i, g := range w.stable.Groups {
			if g.Revision == newRevision {
				updated = append(updated, leader(w.name, i))
			}
		}
		s = traffic.NewSetupInPlace(of, oldRevision, newRevision, p, updated)
	}
	if len(w.children) > 0 {
		s = traffic.NewSetupOfRole(of, w.in.Roles[0].Name, oldRevision, newRevision, p)
	}
	if shifts {
		s.StablePin[record.ServingLabel] = record.Serving
	}
	s.CanaryPin[record.ServingLabel] = record.Serving
	return s
}

// route makes the next write towards a desired routing.
func (w *world) route(d traffic.Desired) error {
	next, err := w.traffic.Next(w.setup(), d)
	w.traffic = next.Accept()
	return err
}

// look returns the observed routing.
func (w *world) look() *traffic.Observed {
	var pods []model.Pod
	for n, s := range w.sets() {
		for i, g := range s.Groups {
			name, labels := w.nameOf(s), map[string]string{}
			if len(w.children) > 0 {
				c := w.children[n]
				name = c.name
				labels[disaggregated.SetNameLabelKey], labels[disaggregated.RoleLabelKey], labels[disaggregated.RevisionLabelKey] = stableName, c.role.Name, c.Template
			}
			pod := model.Pod{Name: leader(name, i), Ready: g.Ready, Labels: labels}
			labels[lws.SetNameLabelKey], labels[lws.WorkerIndexLabelKey], labels[lws.RevisionKey] = name, "0", g.Revision
			if w.serving[g] {
				pod.Labels[record.ServingLabel] = record.Serving
			}
			pods = append(pods, pod)
		}
	}
	w.traffic = w.traffic.Follow(pods)
	return &traffic.Observed{Setup: w.setup(), World: w.traffic.World}
}

// nameOf returns the name of a set.
func (w *world) nameOf(s *native.Set) string {
	if s == w.canary {
		return canaryName
	}
	return w.name
}
