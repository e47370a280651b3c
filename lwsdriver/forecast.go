// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Plan returns what a release would do. It writes nothing, so a read-only driver serves it too.
func (d *Driver) Plan(ctx context.Context, req *pb.PlanRequest) (*pb.PlanResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := checkPlan(req, d.options.Limits); err != nil {
		return nil, err
	}
	if err := d.awaitNearby(ctx, key); err != nil {
		return nil, err
	}
	s, err := d.engine.Observe(key, req.GetPolicy())
	if err != nil {
		return nil, err
	}
	unrouted := d.checkTraffic(ctx, s, req.GetPolicy())
	if err := takeTurn(ctx, key); err != nil {
		return nil, err
	}
	if s, err = d.engine.Observe(key, req.GetPolicy()); err != nil {
		return nil, err
	}
	if err := checkForecast(s); err != nil {
		return nil, err
	}
	in, warnings := d.forecastInput(s, req)
	found, refused, more, err := d.obstacles(s, req.GetPolicy(), unrouted)
	if err != nil {
		return nil, err
	}
	in.Ended = ctx.Err
	r, err := simulate.Release(in)
	switch {
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%s: %v", observe.Object(key), err)
	}
	r.Blockers, r.Warnings = slices.Concat(refused, r.GetBlockers()), slices.Concat(warnings, more)
	r.Findings = preflight.Unreported(found, slices.Concat(r.Blockers, r.Warnings)...)
	if startup, groups := d.startup(s); req.GetStartup().AsDuration() == 0 && startup > 0 {
		r.StartupGroups = int32(groups) //nolint:gosec // a number of groups
	}
	return r, nil
}

// checkForecast refuses a plan that can't be simulated.
func checkForecast(s *observe.Snapshot) error {
	groups, ofRoles := s.Stable.Replicas, 0
	for _, role := range s.Roles {
		ofRoles += max(role.Replicas, 1) * s.Slices // a child without groups costs as much
	}
	groups = max(groups, ofRoles)
	if groups > simulate.MaxGroups {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"%s has %d groups, and a plan simulates at most %d groups: plan the release of a smaller workload", observe.Object(s.Key), groups, simulate.MaxGroups)
	}
	return nil
}

// startup returns how long a group takes to become ready, and the number of groups that this was measured on: of the slowest role.
func (d *Driver) startup(s *observe.Snapshot) (took time.Duration, groups int) {
	if s.Set == nil {
		return d.engine.Observer.Caches.Groups.Startup(s.Key, s.Stable.Replicas)
	}
	// A unit is ready once the slowest of its roles is.
	for _, c := range s.Children {
		if t, n := d.engine.Observer.Caches.Groups.Startup(types.NamespacedName{Namespace: s.Key.Namespace, Name: c.Name}, c.Replicas); t > took {
			took, groups = t, n
		}
	}
	return took, groups
}

func checkPlan(req *pb.PlanRequest, limits record.Limits) error {
	return checkPolicy(req.GetPolicy(), limits, checkDuration("startup", req.GetStartup())...)
}

// forecastInput returns what the forecast depends on, with warnings about what of it is unknown.
func (d *Driver) forecastInput(s *observe.Snapshot, req *pb.PlanRequest) (simulate.Input, []*pb.Warning) {
	var warnings []*pb.Warning
	policy, _ := record.ParsePolicy(req.GetPolicy())
	// Under hold the user's own configuration is in the record, and not in the spec.
	in := simulate.Input{
		Replicas: s.Stable.Replicas, Slices: s.Slices, Rolling: plan.NewRecord(s.Observation).Saved, Policy: policy,
		New: s.StableObject.Spec.LeaderWorkerTemplate, Old: s.StableObject.Spec.LeaderWorkerTemplate,
		Startup: req.GetStartup().AsDuration(), StatefulSetMaxUnavailable: req.GetStatefulSetMaxUnavailable(), Frames: req.GetIncludeFrames(),
	}
	for _, role := range plan.EntryFirst(s.Observation) {
		t := s.Set.Spec(role.Name).LeaderWorkerTemplate
		in.Roles = append(in.Roles, simulate.Role{Role: role, Old: t, New: t})
	}
	if in.Startup == 0 {
		in.Startup, _ = d.startup(s)
	}
	if in.Startup == 0 && in.Replicas > 0 {
		warnings = append(warnings, &pb.Warning{Code: "StartupUnknown", Message: fmt.Sprintf(
			"no group of %s has become ready yet, so how long one takes is unknown: set the start-up time", s.Key)})
	}
	if plan.UpToDate(s.Observation) {
		return in, append(warnings, &pb.Warning{Code: "NothingToRelease", Message: fmt.Sprintf(
			"the groups of %s run its template already: this is what the release of another template would do", s.Key)})
	}
	old, err := d.runningTemplate(s)
	if old == nil {
		return in, append(warnings, &pb.Warning{Code: "StableTemplateUnknown", Message: fmt.Sprintf(
			"the template that the groups of %s run could not be read, so they are assumed to request what the new ones do: %v", s.Key, err)})
	}
	in.Old = old.LeaderWorkerTemplate
	for _, role := range old.Roles {
		if i := slices.IndexFunc(in.Roles, func(r simulate.Role) bool { return r.Name == role.Name }); i >= 0 {
			in.Roles[i].Old = role.Spec.LeaderWorkerTemplate
		}
	}
	if len(in.Roles) > 0 {
		// The entry role, which is the first, stands for the workload.
		in.Old = in.Roles[0].Old
	}
	return in, warnings
}

// runningTemplate returns the template that the groups run, or why it is unknown.
func (d *Driver) runningTemplate(s *observe.Snapshot) (*record.Template, error) {
	now := s.StableRevisions()
	if len(now) != 1 {
		return nil, fmt.Errorf("they are at %d revisions", len(now))
	}
	t, err := d.engine.Applier.Template(s, now[0])
	if err != nil {
		return nil, err
	}
	return &t, nil
}

// obstacles returns what preflight finds nearby, what Initialize would refuse, and what it would warn of. An error is not about the release.
// Unrouted is that of checkTraffic.
func (d *Driver) obstacles(s *observe.Snapshot, p *pb.ReleasePolicy, unrouted error) (found []*pb.Finding, blockers, warnings []*pb.Warning, err error) {
	begin := plan.Begin{Policy: p}
	found, costs, errCosts := d.capacityFindings(s, p)
	warnings = append(begin.Warnings(s.Observation), costs...)
	for _, err := range append(begin.Obstacles(s.Observation), unrouted, errCosts) {
		err = observe.ContractError(err)
		switch status.Code(err) {
		case codes.OK:
		case codes.Unavailable, codes.Aborted, codes.Internal:
			// What could not be judged must not look like a reason against the release.
			return nil, nil, nil, err
		default:
			blockers = append(blockers, &pb.Warning{Code: reasonCode(drivererr.Reason(err)), Message: status.Convert(err).Message()})
		}
	}
	return found, blockers, warnings, nil
}

// reasonCode returns a reason in the form of a warning's code: "QuotaExceeded".
func reasonCode(r pb.ErrorReason) string {
	return plugin.CamelCase(drivererr.Name(r))
}
