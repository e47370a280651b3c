// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/model"
)

// routing describes the objects that carry a release's requests. See [TestScenarios] for the fields.
type routing struct {
	isolated, prepared, handedOver bool
	weight, seen                   int
	leaking, endpointsLag          bool
	gone, blocked, unread          bool
	// stable is the number of ready endpoints of the stable Service, pods are those of the canary's.
	stable int
	pods   []string
}

// routed are the objects that policies of tests name.
var routed = traffic.Policy{StableService: "service", CanaryService: "service-canary", Routes: []traffic.Key{{Kind: traffic.KindHTTPRoute, Name: "route"}}}

// pooled are routed, with a pool.
var pooled = func() traffic.Policy {
	p := routed
	p.Pool = &traffic.Pool{Stable: "pool", Canary: "pool-canary", Picker: "picker"}
	return p
}()

// twoRoutes are routed, with another route.
var twoRoutes = func() traffic.Policy {
	p := routed
	p.Routes = append(slices.Clip(p.Routes), traffic.Key{Kind: traffic.KindHTTPRoute, Name: "second"})
	return p
}()

// setupOf returns the traffic of a release as the observer does.
func setupOf(o Observation) traffic.Setup {
	of := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: o.Stable.Name, UID: "workload"}}
	r, s := o.release(), traffic.Setup{}
	if InPlace(o.Policy.Style) {
		var updated []string
		from, to := "none", "none"
		if r != nil {
			from, to = r.StableRevision, r.UpdateRevision
			for _, g := range o.Stable.Groups {
				if !o.staysStable(g) {
					updated = append(updated, g.Leader)
				}
			}
		}
		s = traffic.NewSetupInPlace(of, from, to, routed, updated)
	} else {
		name := record.CanaryName(o.knownAs(), o.Stable.Name, "none")
		switch {
		case len(o.Added) > 0:
			name = o.Added[0].Name
		case r != nil && r.UpdateRevision != "":
			name = record.CanaryName(o.knownAs(), o.Stable.Name, r.UpdateRevision)
		}
		s = traffic.NewSetup(of, name, routed, nil)
	}
	s.CanaryPin[record.ServingLabel] = record.Serving
	return s
}

// observe returns the routing as the observer does: objects that were written by the release's own steps.
func (v routing) observe(o Observation) *traffic.Observed {
	if v.unread {
		return &traffic.Observed{Unread: &drivererr.Problem{Reason: pb.ErrorReason_ERROR_REASON_NOT_SYNCED, Message: "the caches are not filled yet"}}
	}
	s := setupOf(o)
	m := model.New(s)
	user := m.Stable
	m.CanaryReady = []string{s.Canary + "-0"} // a share grows only while the canary has endpoints
	for _, step := range []struct {
		made bool
		d    traffic.Desired
	}{
		{v.isolated, traffic.Desired{Isolated: true}}, {v.prepared, preparedRouting()}, {v.weight > 0, traffic.Desired{Weight: v.weight}},
		{v.handedOver, requestsToSecondSet()},
	} {
		for range 3 { // as many as there are objects
			if step.made {
				m = must(m.Next(s, step.d))
			}
		}
	}
	if !v.isolated && !v.handedOver {
		m.Stable = user
	}
	if m = m.Accept(); v.seen != v.weight {
		for _, r := range m.Routes {
			r.SetGeneration(r.GetGeneration() + 1)
		}
	}
	m.StableReady, m.CanaryReady = nil, v.pods
	for i := range v.stable {
		m.StableReady = append(m.StableReady, fmt.Sprintf("%s-%d", o.Stable.Name, i))
	}
	if (s.InPlace() && !v.isolated || v.handedOver) && !v.endpointsLag {
		m.StableReady = slices.Compact(slices.Sorted(slices.Values(append(m.StableReady, v.pods...))))
	}
	if v.handedOver {
		m.StableReady = slices.DeleteFunc(m.StableReady, func(pod string) bool { return !slices.Contains(v.pods, pod) && !v.endpointsLag })
	}
	switch {
	case v.leaking && len(v.pods) > 0:
		m.StableReady = append(m.StableReady, v.pods...)
	case v.leaking:
		m.StableReady = append(m.StableReady, s.Canary+"-0")
		if s.InPlace() {
			s.Updated = append(s.Updated, s.Canary+"-9")
			m.StableReady = append(m.StableReady, s.Canary+"-9")
		}
	}
	if v.gone {
		m.Stable = nil
	}
	if v.blocked {
		m.Canary = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: routed.CanaryService}}
	}
	return &traffic.Observed{Setup: s, World: m.World}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
