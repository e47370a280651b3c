// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
	"google.golang.org/grpc/status"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// endTimeout bounds a call of the router. Argo's controller calls again.
const endTimeout = 5 * time.Second

// Argo's controller calls the traffic router on every reconcile of a Rollout, so it sees what no step sees: promote --full, abort, the end
// of the last step. It reads the driver's caches, and writes only if an action is due.
//
// Argo's controller knows no canary pods, so it always sets weight 0, and removes managed routes again and again. Neither is
// forwarded: requests are routed by the steps of this plugin, or as Argo's own setWeight, setHeaderRoute and setMirrorRoute
// steps say, until the release ends.
var _ rpc.TrafficRouterPlugin = (*Plugin)(nil)

// UpdateHash does nothing: the driver sets the selector of the canary's Service.
func (*Plugin) UpdateHash(*v1alpha1.Rollout, string, string, []v1alpha1.WeightDestination) types.RpcError {
	return types.RpcError{}
}

// RemoveManagedRoutes ends the release if Argo has ended it. Routes are removed with the release, not before.
func (p *Plugin) RemoveManagedRoutes(ro *v1alpha1.Rollout) types.RpcError {
	return p.call(ro, "end of the release", func(ctx context.Context, t Target) error {
		_, err := p.reconcileEnd(ctx, t)
		return err
	})
}

// SetWeight ends the release if Argo has ended it, and otherwise sets the weight of the last setWeight step.
func (p *Plugin) SetWeight(ro *v1alpha1.Rollout, _ int32, _ []v1alpha1.WeightDestination) types.RpcError {
	return p.call(ro, "weight", func(ctx context.Context, t Target) error {
		c, err := p.reconcileEnd(ctx, t)
		weight, set := nativeWeight(ro)
		if err != nil || c == nil || !set {
			return err
		}
		id, ok := routedRelease(t, c)
		// Argo calls on every reconcile. The share in force may be as low while a higher one is requested.
		if !ok || c.GetRequestedWeight() == weight {
			return nil
		}
		_, err = t.Driver.Call(ctx, &pb.SetWeightRequest{Workload: t.Ref, ReleaseId: id.String(), UpdateRevision: id.Revision, Weight: weight})
		return err
	})
}

// reconcileEnd ends the release if Argo has ended it. Unless the Rollout is aborted, promoted in full or at the end of its steps, an
// unavailable driver is no error: that would block the Rollout, and the Controller ends the release later. At the end of the steps Argo
// must not go on before the driver has the promotion, because afterwards nothing tells it from a first deployment.
func (p *Plugin) reconcileEnd(ctx context.Context, t Target) (*pb.BatchContext, error) {
	if f := t.Facts; f.Abort || f.PromoteFull || f.StepsDone && f.Stable != f.Hash {
		return ReconcileEndNow(ctx, t)
	}
	c, err := t.Look(ctx)
	if err != nil {
		return c, nil //nolint:nilerr // See above.
	}
	m := t.ReconcileEnd(c)
	if _, undo := m.Request.(*pb.UndoRequest); undo || m.Outcome == converge.Wait {
		return c, nil // a template that can't be restored does not block Argo: the Controller reports it
	}
	return ReconcileEndNow(ctx, t)
}

// VerifyWeight reports whether the weight of the last setWeight step is in force, for which Argo waits. The steps of this plugin
// verify theirs.
func (p *Plugin) VerifyWeight(
	ro *v1alpha1.Rollout, _ int32, _ []v1alpha1.WeightDestination,
) (types.RpcVerified, types.RpcError) {
	verified := types.NotImplemented
	err := p.call(ro, "verify", func(ctx context.Context, t Target) error {
		weight, set := nativeWeight(ro)
		if !set {
			return nil
		}
		c, err := t.Look(ctx)
		if err != nil {
			return err
		}
		id, ok := routedRelease(t, c)
		if !ok {
			return nil
		}
		// From here on Argo waits, also if the driver does not answer.
		verified = types.NotVerified
		response, err := t.Driver.VerifyWeight(ctx, &pb.VerifyWeightRequest{Workload: t.Ref, ReleaseId: id.String(), Weight: weight})
		if response.GetVerified() {
			verified = types.Verified
		}
		return err
	})
	return verified, err
}

// SetHeaderRoute does a setHeaderRoute step. Without matches it removes the route.
func (p *Plugin) SetHeaderRoute(ro *v1alpha1.Rollout, route *v1alpha1.SetHeaderRoute) types.RpcError {
	return p.route(ro, "header route", func(ctx context.Context, t Target, id ID) error {
		_, err := t.Driver.Call(ctx, &pb.SetHeaderRouteRequest{
			Workload: t.Ref, ReleaseId: id.String(), UpdateRevision: id.Revision, Name: route.Name, Matches: headerMatches(route.Match),
		})
		return err
	})
}

// SetMirrorRoute does a setMirrorRoute step. Argo's controller sends no percentage for 0.
func (p *Plugin) SetMirrorRoute(ro *v1alpha1.Rollout, mirror *v1alpha1.SetMirrorRoute) types.RpcError {
	return p.route(ro, "mirror", func(ctx context.Context, t Target, id ID) error {
		_, err := t.Driver.Call(ctx, &pb.SetMirrorRequest{
			Workload: t.Ref, ReleaseId: id.String(), UpdateRevision: id.Revision, Percentage: ptr.Deref(mirror.Percentage, 0),
		})
		return err
	})
}

// route does what one of Argo's own steps routes, unless the Rollout is leaving its steps. Argo calls it once, so that a release
// that can't be routed yet is an error, after which Argo calls again.
func (p *Plugin) route(ro *v1alpha1.Rollout, what string, work func(context.Context, Target, ID) error) types.RpcError {
	return p.call(ro, what, func(ctx context.Context, t Target) error {
		c, err := t.Look(ctx)
		if err != nil {
			return err
		}
		id, ok := routedRelease(t, c)
		switch {
		case ok:
			return work(ctx, t, id)
		case t.Facts.Abort, t.Facts.PromoteFull, t.Facts.Promoted(), movesForward(c):
			return nil
		}
		return fmt.Errorf("%s: no release of %s can be routed: %s", what, t.Config.Workload, c.GetMessage())
	})
}

// call reads the Rollout and does the work, unless the Rollout does not use this plugin or is being deployed first.
func (p *Plugin) call(ro *v1alpha1.Rollout, what string, work func(context.Context, Target) error) types.RpcError {
	// Steps report mistakes of the configuration. A release can be ended all the same.
	f, config, _ := p.read(ro)
	// At the first deployment there is no release to end, and Argo must not be held up.
	if config == nil || f.Stable == "" {
		return types.RpcError{}
	}
	ctx, cancel := context.WithTimeout(p.Context, endTimeout)
	defer cancel()
	err := work(ctx, NewTarget(p.Driver, f, config))
	if err == nil {
		return types.RpcError{}
	}
	p.Logger.Warn(what+" not done", "rollout", f.Namespace+"/"+f.Name, "error", err)
	return types.RpcError{ErrorString: status.Convert(err).Message()}
}

// routedRelease returns the release of the Rollout's current template, if requests can be routed to it now.
func routedRelease(t Target, c *pb.BatchContext) (ID, bool) {
	id, own := Ours(t.Facts, c)
	ok := own && plugin.InFlight(c) && id.Hash == t.Facts.Hash && id.Revision == c.GetUpdateRevision() &&
		!plugin.Ending(c) && t.Config.Policy.GetTraffic() != nil && !t.Facts.Abort
	return id, ok
}

// headerMatches converts Argo's header matches to those of the contract, which has no prefix match.
func headerMatches(all []v1alpha1.HeaderRoutingMatch) []*pb.HeaderMatch {
	out := make([]*pb.HeaderMatch, 0, len(all))
	for _, m := range all {
		match := &pb.HeaderMatch{Name: m.HeaderName}
		switch v := m.HeaderValue; {
		case v == nil:
			// A match without a value asks for the header alone.
			match.Value = &pb.HeaderMatch_Regex{Regex: ".*"}
		case v.Exact != "":
			match.Value = &pb.HeaderMatch_Exact{Exact: v.Exact}
		case v.Prefix != "":
			match.Value = &pb.HeaderMatch_Regex{Regex: regexp.QuoteMeta(v.Prefix) + ".*"}
		default:
			match.Value = &pb.HeaderMatch_Regex{Regex: v.Regex}
		}
		out = append(out, match)
	}
	return out
}
