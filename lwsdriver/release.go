// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// maxOwner is the longest owner that a record takes.
const maxOwner = 253

// Initialize begins a release.
func (d *Driver) Initialize(ctx context.Context, req *pb.InitializeRequest) (*pb.InitializeResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := checkInitialize(req); err != nil {
		return nil, err
	}
	d.scalers.scaled.look()
	d.awaitRead(ctx, key)
	var warnings []*pb.Warning
	action, err := d.mutate(ctx, key, func(s *seen) (plan.Action, error) {
		warnings = append(foundHeld(s), scaledBy(s, req.GetPolicy().GetStyle())...)
		if err := checkWorkload(s); err != nil {
			return nil, err
		}
		if begun, err := sameRelease(s, req); begun || err != nil {
			return nil, err
		}
		if err := d.checkRoom(s, req.GetPolicy().GetStyle()); err != nil {
			return nil, err
		}
		if err := checkAdopts(s, req.GetPolicy()); err != nil {
			return nil, err
		}
		warnings = append(warnings, adoptionOf(s, req.GetPolicy())...)
		if err := d.checkTraffic(ctx, s, req.GetPolicy()); err != nil {
			return nil, err
		}
		if err := d.checkAutoscalers(s, req.GetPolicy().GetStyle()); err != nil {
			return nil, err
		}
		costs, err := d.preview(ctx, s, req.GetPolicy())
		if err != nil {
			return nil, err
		}
		warnings = append(warnings, costs...)
		if !nothingWaits(s) {
			warnings = append(warnings, preflight.Warnings(d.nearby(ctx, s, req.GetPolicy()), warnings...)...)
		}
		return begin(s, req)
	})
	if err != nil {
		return nil, err
	}
	c, err := d.await(ctx, key, req.GetWait(), req.GetIncludeGroups())
	if err != nil {
		return nil, err
	}
	return &pb.InitializeResponse{Action: action, Context: c, Warnings: warnings}, nil
}

func checkInitialize(req *pb.InitializeRequest) error {
	bad := append(checkID(req.GetReleaseId()), checkWait(req.GetWait())...)
	if len(req.GetOwner()) > maxOwner {
		bad = append(bad, drivererr.FieldViolation{Field: "owner", Description: fmt.Sprintf("is longer than %d bytes", maxOwner)})
	}
	return checkPolicy(req.GetPolicy(), bad...)
}

// checkPolicy refuses a policy that is wrong, with what else is, or that is not served.
func checkPolicy(p *pb.ReleasePolicy, bad ...drivererr.FieldViolation) error {
	_, violations := release.ParsePolicy(p)
	for _, v := range violations {
		bad = append(bad, drivererr.FieldViolation(v))
	}
	bad = append(bad, unknownFields("policy", p.ProtoReflect())...)
	if err := drivererr.Invalid(bad...); err != nil {
		return err
	}
	return checkServed(p)
}

// checkServed refuses what is well said, and not served.
func checkServed(p *pb.ReleasePolicy) error {
	if style := p.GetStyle(); !plan.Supports(style) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"this driver does not release in style %s yet, only in: %v", style, served())
	}
	return nil
}

func checkID(id string) []drivererr.FieldViolation {
	if release.ValidID(id) {
		return nil
	}
	return []drivererr.FieldViolation{{
		Field:       "release_id",
		Description: fmt.Sprintf("%q must be 1 to 63 characters of [a-zA-Z0-9._-] that begin and end with a letter or digit", id),
	}}
}

// checkTraffic refuses a release whose requests could not be routed.
func (d *Driver) checkTraffic(ctx context.Context, s *seen, p *pb.ReleasePolicy) error {
	policy, _ := release.ParsePolicy(p)
	if policy.Traffic == nil {
		return nil
	}
	setup := newSetup(s.stable, s.canaryName(s.Stable.Revision), *policy.Traffic, policy.LeaderLabels)
	setup.Adopts = policy.Adopt
	if revisions := s.StableRevisions(); plan.InPlace(policy.Style) && len(revisions) == 1 {
		setup = newSetupInPlace(s.stable, [2]string{revisions[0], s.Stable.Revision}, *policy.Traffic, nil)
	}
	if err := d.router.Check(ctx, setup); err != nil {
		return contractError(err)
	}
	return nil
}

// sameRelease says whether the release is there already, and refuses what stands in the way of a new one.
func sameRelease(s *seen, req *pb.InitializeRequest) (bool, error) {
	if s.Record == nil || s.Record.Release == nil {
		return false, nil
	}
	r := s.Record.Release
	if r.ID != req.GetReleaseId() {
		if err := checkRead(s); err != nil {
			return false, err
		}
		if inFlight(s) {
			return false, drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS,
				"release %q of %q holds LeaderWorkerSet %s: wait for it, promote it or roll it back", r.ID, r.Owner, s.key), "release_id", r.ID)
		}
		return false, nil
	}
	policy, err := r.PolicyMessage()
	if err != nil {
		return false, fmt.Errorf("release %s: %w", r.ID, err)
	}
	if !proto.Equal(policy, req.GetPolicy()) {
		return false, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED,
			"release %q of LeaderWorkerSet %s has another policy, and a policy does not change during a release: choose another release_id", r.ID, s.key)
	}
	return true, nil
}

// checkRoom refuses a release whose objects could not be made, or that would have no way back.
func (d *Driver) checkRoom(s *seen, style pb.Style) error {
	limit := release.MaxStableName(s.Stable.Replicas)
	if known := s.Record.KnownAs(s.Stable.Name); len(known) > limit && !plan.InPlace(style) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TOO_LONG,
			"the name %q has %d characters, its canary allows %d with %d groups: the canary's name, \"-\" and a hash must fit "+
				"the 63 characters of StatefulSet's controller-revision-hash label", known, len(known), limit, s.Stable.Replicas)
	}
	if len(s.StableRevisions()) > 1 {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS, "%s", heldTooLate(s)[0].GetMessage())
	}
	if s.Stable.Replicas > 0 && len(s.StableRevisions()) == 0 {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"no group of LeaderWorkerSet %s exists yet, so there is no stable revision to return to; a moment after it was created that "+
				"is normal: try again once its first group exists", s.key)
	}
	if s.Stable.Revision == "" || plan.InPlace(style) {
		return nil // the canary has no name yet, or there will be none
	}
	name := types.NamespacedName{Namespace: s.key.Namespace, Name: s.canaryName(s.Stable.Revision)}
	if w := d.caches.workload(name); w != nil && stableKey(w) != s.key {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
			"the canary would be named %s, but a LeaderWorkerSet that is not Lockstep's has that name: rename or delete it", name)
	}
	return nil
}

// begin records the release and holds the workload, in one write.
func begin(s *seen, req *pb.InitializeRequest) (plan.Action, error) {
	policy, err := release.EncodePolicy(req.GetPolicy())
	if err != nil {
		return nil, err
	}
	r := &release.Release{
		ID: req.GetReleaseId(), Owner: req.GetOwner(), Policy: policy,
		UpdateRevision: s.Stable.Revision, Phase: release.Progressing, StartedAt: s.Now.UTC(), PhaseAt: s.Now.UTC(),
	}
	if now := s.StableRevisions(); len(now) == 1 {
		r.StableRevision = now[0]
	}
	if s.Stable.Replicas == 0 || r.UpdateRevision != "" && r.UpdateRevision == r.StableRevision {
		r.Phase = release.Nothing
	}
	record := adopted(s)
	record.Release = r
	return plan.SetStable{Record: record, Rolling: release.Hold(), Why: fmt.Sprintf("begin release %s", r.ID)}, nil
}

// current returns the release that a request names.
func current(s *seen, id string) (*release.Release, error) {
	if s.Record == nil || s.Record.Release == nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND,
			"LeaderWorkerSet %s has no release: Initialize begins one", s.key)
	}
	if r := s.Record.Release; r.ID != id {
		return nil, drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND,
			"LeaderWorkerSet %s has release %q, not %q", s.key, r.ID, id), "release_id", r.ID)
	}
	return s.Record.Release, nil
}

// Finalize ends a release, forwards or backwards.
func (d *Driver) Finalize(ctx context.Context, req *pb.FinalizeRequest) (*pb.FinalizeResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	bad := append(checkID(req.GetReleaseId()), checkWait(req.GetWait())...)
	if i := req.GetIntent(); i != pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE && i != pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
		bad = append(bad, drivererr.FieldViolation{Field: "intent", Description: "is required: PROMOTE or ROLLBACK"})
	}
	if err := drivererr.Invalid(bad...); err != nil {
		return nil, err
	}
	action, err := d.mutate(ctx, key, func(s *seen) (plan.Action, error) { return finalize(s, req) })
	if err != nil {
		return nil, err
	}
	c, err := d.await(ctx, key, req.GetWait(), req.GetIncludeGroups())
	if err != nil {
		return nil, err
	}
	return &pb.FinalizeResponse{Action: action, Context: c, Done: over(c.GetState())}, nil
}

// over says whether nothing of a release is left but the hold.
func over(s pb.State) bool {
	return s == pb.State_STATE_COMPLETED || s == pb.State_STATE_ROLLED_BACK || s == pb.State_STATE_NOTHING_TO_RELEASE
}

// finalize records the intent together with its first effect.
func finalize(s *seen, req *pb.FinalizeRequest) (plan.Action, error) {
	r, err := current(s, req.GetReleaseId())
	if err != nil {
		return nil, err
	}
	promote := req.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	switch r.Phase {
	case release.Nothing:
		return nil, nil //nolint:nilnil // no action, no error: done either way
	case release.Promoting, release.Standby, release.Adopting, release.Promoted:
		if promote {
			return nil, checkMeant(s, r, req.GetUpdateRevision()) // no action: as asked, if it is what was asked for
		}
		if r.Phase == release.Adopting {
			return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
				"release %q of %s is promoted: %s serves in its place. To go back, release the old template: `lockstep undo` restores it",
				r.ID, s.key, r.Successor)
		}
		if r.Phase == release.Promoted {
			return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
				"release %q of %s is promoted: every group runs revision %s. To go back, release the old template: `lockstep undo` restores it",
				r.ID, s.key, r.UpdateRevision)
		}
	case release.RollingBack, release.Returning:
		if !promote {
			return nil, nil //nolint:nilnil // as asked
		}
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED,
			"release %q of %s was rolled back: begin a new release to promote", r.ID, s.key)
	case release.Progressing:
	}
	if !promote {
		return plan.BeginRollback(s.Observation), nil
	}
	if err := checkMeant(s, r, req.GetUpdateRevision()); err != nil {
		return nil, err
	}
	if r.UpdateRevision == "" || r.UpdateRevision != s.Stable.Revision {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
			"the template of %s is not the one that release %q brings (%q): look at the context again before promoting", s.key, r.ID, r.UpdateRevision)
	}
	return plan.BeginPromotion(s.Observation), nil
}

// checkMeant refuses to promote anything but the revision that the host has decided on; an empty one is whatever the
// release brings. A template that came once the promotion was over takes nothing back from it.
func checkMeant(s *seen, r *release.Release, want string) error {
	if want == "" || want == r.UpdateRevision && (r.Phase == release.Promoted || r.Phase == release.Adopting || want == s.Stable.Revision) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
		"the promotion of revision %q was asked for, but release %q of %s brings %q, and the template is at %q: look at the context again before promoting",
		want, r.ID, s.key, r.UpdateRevision, s.Stable.Revision)
}
