// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"errors"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// context returns the state of the workload. d.mu is held.
func (w *workload) context() *pb.BatchContext {
	c := &pb.BatchContext{
		Workload:       proto.CloneOf(w.ref),
		State:          pb.State_STATE_UNMANAGED,
		Reason:         "NotAdopted",
		Replicas:       w.replicas,
		Size:           1,
		StableReady:    w.replicas,
		Total:          w.replicas,
		StableRevision: w.stable, TemplateRevision: w.revision,
		TrafficBasis: pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS,
	}
	if w.adopted {
		c.State, c.Reason = pb.State_STATE_HOLDING, "AtRest"
	}
	if w.release != nil {
		w.release.describe(c, w)
	}
	return c
}

// describe adds the state of the release.
func (r *release) describe(c *pb.BatchContext, w *workload) {
	c.ReleaseId, c.Owner, c.Style = r.id, r.owner, r.policy.GetStyle()
	c.Batches = int32(len(r.policy.GetBatches())) //nolint:gosec // a policy has a handful of batches
	c.UpdateRevision, c.Intent, c.EndMessage = r.update, r.intent, r.message
	switch {
	case r.intent == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE:
		c.State, c.Reason = pb.State_STATE_COMPLETED, "Promoted"
		c.Updated, c.UpdatedReady, c.StableReady = w.replicas, w.replicas, 0
	case r.intent == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK:
		c.State, c.Reason = pb.State_STATE_ROLLED_BACK, "RolledBack"
	case r.update == w.stable:
		c.State, c.Reason = pb.State_STATE_NOTHING_TO_RELEASE, "SameRevision"
	case r.target == "":
		c.State, c.Reason = pb.State_STATE_HOLDING, "Initialized"
	default:
		c.State, c.Reason = pb.State_STATE_READY, "BatchReady"
		c.CurrentBatch, c.Target, c.Planned, c.Desired = r.batch, r.target, r.planned, r.planned
		c.Updated, c.UpdatedReady = r.planned, r.planned
		c.StableReady = w.replicas - r.planned
		c.TrafficWeight = r.planned * 100 / max(w.replicas, 1)
	}
}

// groups resolves "3" or "25%" of replicas, rounded up and clamped.
func groups(target string, replicas int32) (int32, error) {
	number, percent := strings.CutSuffix(target, "%")
	value, err := strconv.ParseInt(number, 10, 32)
	if err != nil || value < 0 || (percent && value > 100) {
		return 0, errors.New("want a count, or a percentage from 0% to 100%")
	}
	if percent {
		value = (value*int64(replicas) + 99) / 100
	}
	return min(int32(value), replicas), nil
}
