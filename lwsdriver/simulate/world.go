// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/model"
)

// The revisions and names of the two workloads, which are arbitrary.
const (
	oldRevision, newRevision = "old", "new"
	stableName, canaryName   = "stable", "canary"
	releaseID                = "plan"
)

// world is the cluster, as far as the planner observes it.
type world struct {
	in     Input
	policy record.Policy

	// now is the time since the release began.
	now     time.Duration
	stable  child
	record  record.Record
	traffic model.Objects

	// canary is the added workload, without a Set if there is none.
	canary                 child
	target                 *record.Target
	hasFinalizer, deleting bool

	// children are the LeaderWorkerSets of a DisaggregatedSet, those of the old revision first, and bounds those of their groups.
	children []child
	bounds   *plan.Bounds

	// due is when a group becomes ready, since when it became ready.
	due, since map[*native.Group]time.Duration
	serving    map[*native.Group]bool
	// changed is called after every possible change of groups.
	changed func()
}

// epoch is when the release begins: long after the present groups became ready.
var epoch = time.Unix(1<<30, 0).UTC()

func newWorld(in Input) *world {
	w := &world{
		in: in, policy: in.Policy, due: map[*native.Group]time.Duration{}, since: map[*native.Group]time.Duration{},
		serving: map[*native.Group]bool{}, stable: child{Set: native.NewSet(in.Replicas, record.Hold(), oldRevision), name: stableName},
	}
	w.policy.RolloutID = "" // it moves no group
	w.stable.Parallel = in.StatefulSetMaxUnavailable
	w.newChildren()
	for _, s := range w.sets() {
		for _, g := range s.Groups {
			// The present groups became ready long before the release.
			w.since[g] = -24 * time.Hour
		}
	}
	// The user has changed the template, and the hold keeps LWS from rolling it out.
	w.stable.Template = newRevision
	w.traffic = model.New(w.setup())
	w.record = record.Record{Version: 1, Saved: in.Rolling, Release: &record.Release{
		ID: releaseID, StableRevision: oldRevision, UpdateRevision: newRevision, Phase: record.Progressing, StartedAt: w.time(), PhaseAt: w.time(),
	}}
	return w
}

func (w *world) time() time.Time { return epoch.Add(w.now) }

// sets returns the workloads that exist.
func (w *world) sets() []child {
	switch {
	case len(w.children) > 0:
		return w.children
	case w.canary.Set == nil:
		return []child{w.stable}
	}
	return []child{w.stable, w.canary}
}

// reconcile runs LWS and the StatefulSet controller.
func (w *world) reconcile() {
	for _, s := range w.sets() {
		for _, i := range s.Reconcile() {
			w.due[s.Groups[i]] = w.now + w.in.startup()
		}
	}
	w.changed()
}

// advance lets time pass until groups become ready, or for recheck if that is earlier. It returns false if nothing will
// ever change.
func (w *world) advance(recheck time.Duration) bool {
	next, any := w.now+recheck, recheck > 0
	for _, s := range w.sets() {
		for _, i := range s.Unready() {
			if at := w.due[s.Groups[i]]; !any || at < next {
				next, any = at, true
			}
		}
	}
	if !any {
		return false
	}
	w.now = next
	for _, s := range w.sets() {
		for _, i := range s.Unready() {
			if g := s.Groups[i]; w.due[g] <= w.now {
				g.Ready, w.since[g] = true, w.now
			}
		}
	}
	w.reconcile()
	return true
}

// observe returns what the driver's observer would.
func (w *world) observe() plan.Observation {
	o := w.observeGroups()
	if w.policy.Traffic != nil {
		o.Traffic = w.look()
	}
	return o
}

// observeGroups returns what the driver's observer would, but for the traffic.
func (w *world) observeGroups() plan.Observation {
	if len(w.children) > 0 {
		return w.observeRoles()
	}
	o := plan.Observation{Now: w.time(), Record: &w.record, Policy: w.policy, Stable: w.workload(w.stable)}
	if w.canary.Set != nil {
		c := w.workload(w.canary)
		c.Carries, c.HasFinalizer, c.Deleting, c.Target = newRevision, w.hasFinalizer, w.deleting, w.target
		o.Added = []plan.Workload{c}
	}
	return o
}

func (w *world) workload(s child) plan.Workload {
	out := plan.Workload{Name: s.name, Replicas: s.Replicas, Size: w.in.Size(), Revision: s.Template, Rolling: s.Rolling, Observed: true}
	for _, i := range slices.Sorted(maps.Keys(s.Groups)) {
		g := s.Groups[i]
		view := plan.Group{
			Index: i, Leader: leader(s.name, i), Revision: g.Revision, Serving: w.serving[g], Pods: w.in.Size(), Reason: "Starting", Message: "is starting",
		}
		if g.Ready {
			view.Ready, view.ReadySince, view.ReadyPods = true, epoch.Add(w.since[g]), view.Pods
			view.Reason, view.Message = "", ""
			if w.now-w.since[g] >= w.policy.MinReady {
				view.FirstReady = view.ReadySince.Add(w.policy.MinReady)
			}
		}
		out.Groups = append(out.Groups, view)
	}
	return out
}

func leader(name string, index int) string { return fmt.Sprintf("%s-%d", name, index) }

// apply applies the planner's write.
func (w *world) apply(action plan.Action) error {
	switch a := action.(type) {
	case plan.SetStable:
		w.applyStable(a)
	case plan.CreateCanary:
		// Groups of a new Set are ready at once, and those of the canary have to start.
		w.canary = child{Set: native.NewSet(0, record.Native(record.Hold()), newRevision), name: canaryName}
		w.canary.Replicas, w.hasFinalizer, w.deleting, w.target = a.Replicas, true, false, a.Target
	case plan.ScaleCanary:
		w.canary.Replicas = a.Replicas
		w.target = cmp.Or(a.Target, w.target)
	case plan.RemoveFinalizer:
		w.hasFinalizer = false
	case plan.DeleteCanary:
		w.deleting = true
	case plan.RestartGroup:
		for i, g := range w.stable.Groups {
			if leader(stableName, i) == a.Leader && g.Revision != oldRevision {
				delete(w.stable.Groups, i)
			}
		}
	case plan.SetTraffic:
		return w.route(a.Desired)
	case plan.LabelServing:
		for _, s := range w.sets() {
			for i, g := range s.Groups {
				if leader(s.name, i) == a.Leader {
					w.serving[g] = a.Serves
				}
			}
		}
	case plan.HandOver:
		// The object that it replaces has no groups, and is deleted at once.
		w.stable, w.record, w.canary, w.target = w.canary, a.Record, child{}, nil
		w.stable.name, w.stable.Rolling = a.Name, record.Hold()
	case plan.SetBounds:
		w.bounds = &a.Bounds
	case plan.ScaleChild:
		for _, c := range w.children {
			if c.name == a.Name {
				c.Replicas = a.Replicas
			}
		}
	default:
		return fmt.Errorf("the forecast does not support the action %q", action)
	}
	// The API server removes an object with its last finalizer.
	if w.deleting && !w.hasFinalizer {
		w.canary, w.target, w.deleting = child{}, nil, false
	}
	w.reconcile()
	return nil
}

func (w *world) applyStable(a plan.SetStable) {
	w.record = a.Record
	if a.Rolling != nil {
		w.stable.Rolling = *a.Rolling
		// The record shares the pointer.
		w.stable.Rolling.Partition = ptr.To(ptr.Deref(a.Rolling.Partition, 0))
	}
	if a.SaveTemplate {
		w.record.Release.StableTemplate = &record.Template{}
	}
	if a.RestoreTemplate {
		w.stable.Template = oldRevision
	}
	if a.Replicas != nil {
		w.stable.Replicas = *a.Replicas
	}
}

// A forecast needs only the shares of requests, so one Service and one route stand for whatever the policy names. Gateways
// follow at once.

// setup returns the traffic of the release.
func (w *world) setup() traffic.Setup {
	p := traffic.Policy{StableService: "service", CanaryService: "canary", Routes: []traffic.Key{{Kind: traffic.KindHTTPRoute, Name: "route"}}}
	of := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: w.stable.name, UID: "workload"}}
	s := traffic.NewSetup(of, canaryName, p, nil)
	shifts := plan.InPlace(w.policy.Style) && len(w.children) > 0
	if plan.InPlace(w.policy.Style) && !shifts {
		var updated []string
		for i, g := range w.stable.Groups {
			if g.Revision == newRevision {
				updated = append(updated, leader(w.stable.name, i))
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
	for _, s := range w.sets() {
		for i, g := range s.Groups {
			labels := map[string]string{lws.SetNameLabelKey: s.name, lws.WorkerIndexLabelKey: "0", lws.RevisionKey: g.Revision}
			if len(w.children) > 0 {
				labels[disaggregated.SetNameLabelKey], labels[disaggregated.RoleLabelKey], labels[disaggregated.RevisionLabelKey] = stableName, s.role.Name, s.Template
			}
			if w.serving[g] {
				labels[record.ServingLabel] = record.Serving
			}
			pods = append(pods, model.Pod{Name: leader(s.name, i), Ready: g.Ready, Labels: labels})
		}
	}
	w.traffic = w.traffic.Follow(pods)
	return &traffic.Observed{Setup: w.setup(), World: w.traffic.World}
}
