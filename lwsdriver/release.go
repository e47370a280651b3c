// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Initialize begins a release.
func (d *Driver) Initialize(ctx context.Context, req *pb.InitializeRequest) (*pb.InitializeResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := checkInitialize(req, d.options.Limits); err != nil {
		return nil, err
	}
	_ = d.awaitNearby(ctx, key) // the decision's own observation returns the error, too
	d.awaitRevision(ctx, key)
	begin := beginOf(req, userOf(ctx))
	// These checks need I/O, which the planner has none of. They run under the lock, before anything is recorded.
	m, c, err := d.mutateAndWait(ctx, key, begin, req, func(ctx context.Context, s *observe.Snapshot, decision *plan.Decision) error {
		if err := d.checkTraffic(ctx, s, req.GetPolicy()); err != nil {
			return err
		}
		found, costs, err := d.preview(s, req.GetPolicy())
		if err != nil {
			return err
		}
		decision.Warnings = append(decision.Warnings, costs...)
		decision.Warnings = append(decision.Warnings, preflight.Warnings(found, decision.Warnings...)...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &pb.InitializeResponse{Action: m.action, Context: c, Warnings: m.decision.Warnings}, nil
}

// awaitRevision returns once LWS has recorded the template as a revision, or soon: otherwise the release would begin with a write that
// can't name its revision yet, and take another. A workload that is not held is not waited for, since it would roll meanwhile.
func (d *Driver) awaitRevision(ctx context.Context, key types.NamespacedName) {
	_ = d.pollUntil(ctx, key, durationpb.New(raceTimeout), func() (bool, error) {
		s, err := d.engine.Observe(key)
		if err != nil {
			return false, err // the caller's observation returns it, too
		}
		return s.Stable.Revision != "" || !record.SameRolling(record.Hold(), s.Stable.Rolling), nil
	})
}

func checkInitialize(req *pb.InitializeRequest, limits record.Limits) error {
	bad := append(checkID(req.GetReleaseId()), checkDuration("wait", req.GetWait())...)
	if len(req.GetOwner()) > record.MaxOwner {
		bad = append(bad, fieldViolation("owner", "is longer than %d bytes", record.MaxOwner)...)
	}
	return checkPolicy(req.GetPolicy(), limits, bad...)
}

// checkPolicy refuses a policy that is invalid or exceeds the limits, together with the other violations of the request.
func checkPolicy(p *pb.ReleasePolicy, limits record.Limits, bad ...drivererr.FieldViolation) error {
	policy, violations := record.ParsePolicy(p)
	return drivererr.Invalid(slices.Concat(bad, violations, limits.Check(policy), unknownFields("policy", p.ProtoReflect()))...)
}

func checkID(id string) []drivererr.FieldViolation {
	if record.ValidID(id) {
		return nil
	}
	return fieldViolation("release_id", "%q must be 1 to 63 characters of [a-zA-Z0-9._-] that begin and end with a letter or digit", id)
}

// checkTraffic refuses a release whose requests could not be routed.
func (d *Driver) checkTraffic(ctx context.Context, s *observe.Snapshot, p *pb.ReleasePolicy) error {
	// checkPolicy has refused an invalid one.
	policy, _ := record.ParsePolicy(p)
	if policy.Traffic == nil {
		return nil
	}
	err, entry := d.engine.Observer.Router.Check(ctx, s.SetupFor(policy)), s.EntryRole
	if err == nil {
		return nil
	}
	if d.engine.Observer.Enter(s, p); s.EntryRole != entry { // the cache of Services was behind
		err = fmt.Errorf("%w: Service %s", observe.ErrChanged, policy.Traffic.StableService)
	}
	return observe.ContractError(err)
}

// UpgradeBatch moves the release to a batch or to an absolute target.
func (d *Driver) UpgradeBatch(ctx context.Context, req *pb.UpgradeBatchRequest) (*pb.UpgradeBatchResponse, error) {
	key, err := d.accept(req.GetWorkload(), checkID(req.GetReleaseId()), checkDuration("wait", req.GetWait()), checkTarget(req))
	if err != nil {
		return nil, err
	}
	m, c, err := d.mutateAndWait(ctx, key, targetOf(req), req)
	if err != nil {
		return nil, err
	}
	return &pb.UpgradeBatchResponse{Action: m.action, Context: c}, nil
}

func checkTarget(req *pb.UpgradeBatchRequest) []drivererr.FieldViolation {
	switch t := req.GetTarget().(type) {
	case *pb.UpgradeBatchRequest_Batch:
		if t.Batch < 0 {
			return fieldViolation("batch", "%d is negative; batches count from 0", t.Batch)
		}
	case *pb.UpgradeBatchRequest_Groups:
		if _, err := record.ParseQuantity(t.Groups); err != nil {
			return fieldViolation("groups", "%v", err)
		}
	default:
		return fieldViolation("target", "is required: batch or groups")
	}
	return nil
}

// Finalize promotes a release or rolls it back.
func (d *Driver) Finalize(ctx context.Context, req *pb.FinalizeRequest) (*pb.FinalizeResponse, error) {
	var bad []drivererr.FieldViolation
	if i := req.GetIntent(); i != pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE && i != pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
		bad = fieldViolation("intent", "is required: PROMOTE or ROLLBACK")
	} else if req.GetForce() && i == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE {
		bad = fieldViolation("force", "is for ROLLBACK only: a promotion never goes past the workload's own maxUnavailable")
	}
	key, err := d.accept(req.GetWorkload(), checkID(req.GetReleaseId()), checkDuration("wait", req.GetWait()), bad)
	if err != nil {
		return nil, err
	}
	m, c, err := d.mutateAndWait(ctx, key, finishOf(req, userOf(ctx)), req)
	if err != nil {
		return nil, err
	}
	return &pb.FinalizeResponse{Action: m.action, Context: c, Done: releaseOver(c.GetState())}, nil
}

// releaseOver reports whether nothing of a release remains but the hold.
func releaseOver(s pb.State) bool {
	return s == pb.State_STATE_COMPLETED || s == pb.State_STATE_ROLLED_BACK || s == pb.State_STATE_NOTHING_TO_RELEASE
}

// Adopt puts a workload under hold while no release runs.
func (d *Driver) Adopt(ctx context.Context, req *pb.AdoptRequest) (*pb.AdoptResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	m, err := d.mutate(ctx, key, plan.Adopt{})
	if err != nil {
		return nil, err
	}
	c, err := d.await(ctx, key, m, nil, false)
	if err != nil {
		return nil, err
	}
	return &pb.AdoptResponse{Action: m.action, Context: c, Warnings: m.decision.Warnings}, nil
}

// Disown removes the hold and restores the user's own rolling update configuration.
func (d *Driver) Disown(ctx context.Context, req *pb.DisownRequest) (*pb.DisownResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	d.awaitRead(ctx, key)
	m, err := d.mutate(ctx, key, plan.Disown{Revision: req.GetTemplateRevision()})
	if err != nil {
		return nil, err
	}
	return &pb.DisownResponse{Action: m.action, Warnings: m.decision.Warnings}, nil
}

// The intents of valid requests.

func beginOf(r *pb.InitializeRequest, user string) plan.Intent {
	return plan.Begin{
		ReleaseID: r.GetReleaseId(), Owner: r.GetOwner(), User: user, Policy: r.GetPolicy(), Revision: r.GetTemplateRevision(),
	}
}

func targetOf(r *pb.UpgradeBatchRequest) plan.Intent {
	t := plan.SetTarget{ReleaseID: r.GetReleaseId(), Revision: r.GetUpdateRevision(), Groups: r.GetGroups()}
	if batch, ok := r.GetTarget().(*pb.UpgradeBatchRequest_Batch); ok {
		t.Batch = ptr.To(int(batch.Batch))
	}
	return t
}

func finishOf(r *pb.FinalizeRequest, user string) plan.Intent {
	// A long message must not keep a release from ending.
	message := observe.Shorten(r.GetMessage(), record.MaxEndMessage)
	if r.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE {
		return plan.Promote{ReleaseID: r.GetReleaseId(), Revision: r.GetUpdateRevision(), User: user, Message: message}
	}
	return plan.RollBack{ReleaseID: r.GetReleaseId(), Force: r.GetForce(), User: user, Message: message}
}

func weightOf(r *pb.SetWeightRequest) plan.Intent {
	return plan.Route{ReleaseID: r.GetReleaseId(), Revision: r.GetUpdateRevision(), Weight: ptr.To(int(r.GetWeight()))}
}

func mirrorOf(r *pb.SetMirrorRequest) plan.Intent {
	return plan.Route{ReleaseID: r.GetReleaseId(), Revision: r.GetUpdateRevision(), Mirror: ptr.To(int(r.GetPercentage()))}
}

func headerRouteOf(r *pb.SetHeaderRouteRequest) plan.Intent {
	route, _ := traffic.ParseHeaderRoute(r.GetName(), r.GetMatches())
	return plan.Route{ReleaseID: r.GetReleaseId(), Revision: r.GetUpdateRevision(), HeaderRoute: &route}
}

// resetOf accepts any revision: returning all requests is right for every template.
func resetOf(r *pb.ResetRequest) plan.Intent {
	return plan.Route{ReleaseID: r.GetReleaseId(), Reset: true}
}

// unknownFields returns the messages, at any depth, with a field that this driver's version of the contract does not have. A host
// that sets one relies on it, and a policy is about safety: so it is refused, not ignored.
func unknownFields(path string, m protoreflect.Message) (bad []drivererr.FieldViolation) {
	_ = protorange.Range(m, func(v protopath.Values) error {
		last := v.Len() - 1
		if raw := v.Values[last]; v.Path[last].Kind() == protopath.UnknownAccessStep {
			number, _, _ := protowire.ConsumeTag(raw.Bytes())
			bad = append(bad, drivererr.FieldViolation{
				Field:       path + v.Path[1:last].String(),
				Description: fmt.Sprintf("has field number %d, which this driver does not know: leave it out, or run a newer driver", number),
			})
		}
		return nil
	})
	return bad
}
