// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/encoded"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// CalculateBatchContext returns the state of the release, from the caches alone.
func (d *Driver) CalculateBatchContext(ctx context.Context, req *pb.CalculateBatchContextRequest) (*pb.CalculateBatchContextResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	c, s, err := d.contextOf(key, req.GetReleaseId(), req.GetIncludeGroups())
	if err == nil && (plan.Unread(s.Observation) || d.engine.Observer.Autoscalers.Pending()) {
		// A command runs a driver of its own, which has just started, and calls once.
		d.awaitRead(ctx, key)
		c, _, err = d.contextOf(key, req.GetReleaseId(), req.GetIncludeGroups())
	}
	if err != nil {
		return nil, err
	}
	return &pb.CalculateBatchContextResponse{Context: c}, nil
}

// WatchBatchContext sends the context at once and whenever it changes.
func (d *Driver) WatchBatchContext(req *pb.WatchBatchContextRequest, stream grpc.ServerStreamingServer[pb.WatchBatchContextResponse]) error {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return err
	}
	// It subscribes before it observes, so that no change is missed.
	changed, stop := d.engine.Observer.Changes.Subscribe(key)
	defer stop()
	var last encoded.Sum
	for {
		now := d.engine.Observer.Caches.Resolve(key) // a handover changes it
		s, decision, err := d.lookAt(now, req.GetReleaseId())
		if err != nil {
			return err
		}
		state, err := d.sharedState(s, decision, req.GetIncludeGroups())
		if err != nil {
			return err
		}
		if state.Sum != last {
			// On the wire it is a WatchBatchContextResponse: both have the context in field 1.
			if err := stream.SendMsg(state); err != nil {
				return err //nolint:wrapcheck // the stream's own
			}
			last = state.Sum
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-d.stopped:
			return drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "the driver is stopping: watch again at another driver")
		}
	}
}

// contextOf observes a workload and returns its context. A release that it names must be the workload's. It writes nothing.
func (d *Driver) contextOf(key types.NamespacedName, release string, rows bool) (*pb.BatchContext, *observe.Snapshot, error) {
	s, decision, err := d.lookAt(d.engine.Observer.Caches.Resolve(key), release)
	if err != nil {
		return nil, nil, err
	}
	return d.describe(s, decision, rows), s, nil
}

// describe returns the context of an observation and its decision, with the last error.
func (d *Driver) describe(s *observe.Snapshot, decision plan.Decision, rows bool) *pb.BatchContext {
	c := describeWorkload(s, decision)
	if rows {
		addGroups(c, s, maxGroupRows)
	}
	if err := d.engine.LastError(s.Key); err != nil {
		addLastError(c, err)
	}
	return c
}

// lookAt observes a workload and decides. A release that is named must be the workload's.
func (d *Driver) lookAt(key types.NamespacedName, release string) (*observe.Snapshot, plan.Decision, error) {
	s, decision, err := d.engine.Look(key)
	if err == nil && release != "" {
		_, err = plan.CurrentRelease(s.Observation, release)
	}
	return s, decision, err
}

// addLastError adds the last error to the context: a retryable one as a remark, any other as the failure.
func addLastError(c *pb.BatchContext, err error) {
	if drivererr.Retryable(err) {
		c.Message = fmt.Sprintf("%s (last write failed and will be tried again: %v)", c.GetMessage(), err)
		return
	}
	setFailed(c, err)
}

// failedContext returns the context of a workload that can't be observed.
func failedContext(key types.NamespacedName, err error) *pb.BatchContext {
	c := &pb.BatchContext{Workload: observe.RefOf(key)}
	setFailed(c, err)
	return c
}

// setFailed makes the context that of an error.
func setFailed(c *pb.BatchContext, err error) {
	c.State = pb.State_STATE_FAILED
	c.Reason = reasonCode(drivererr.Reason(err))
	c.Message = err.Error()
}

// describeWorkload returns an observation and its decision as a message of the contract.
func describeWorkload(s *observe.Snapshot, decision plan.Decision) *pb.BatchContext {
	n := decision.Progress
	if s.Distrusted != "" {
		decision.Message = strings.TrimPrefix(decision.Message+"; "+s.Distrusted, "; ")
	}
	c := &pb.BatchContext{
		Workload: observe.RefOf(s.Key),
		State:    decision.State, Reason: decision.Reason, Message: decision.Message,
		Replicas: toInt32(s.Stable.Replicas), Size: toInt32(s.Stable.Size),
		Planned: toInt32(n.Planned), Desired: toInt32(n.Desired),
		Updated: toInt32(n.Updated), UpdatedReady: toInt32(n.UpdatedReady), StableReady: toInt32(n.StableReady),
		Total: toInt32(n.Total), FailureThreshold: toInt32(n.Threshold),
		Partition:      ptr.Deref(s.Stable.Rolling.Partition, 0),
		UpdateRevision: s.Stable.Revision, TemplateRevision: s.Stable.Revision,
		TrafficWeight: toInt32(n.Weight), TrafficBasis: pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS,
		ObservedGeneration: s.StableObject.Status.ObservedGeneration,
	}
	c.Roles = plan.RoleCounts(s.Observation)
	if n.Routed {
		c.TrafficBasis = pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
	}
	if r := s.StableRevisions(); len(r) == 1 {
		c.StableRevision = r[0]
	}
	if s.Record == nil || s.Record.Release == nil {
		return c
	}
	r := s.Record.Release
	if r.Phase == record.HandingOver {
		c.Replicas = toInt32(r.Groups) // some of them are being deleted, as they should be
	}
	c.ReleaseId, c.Owner, c.Style = r.ID, r.Owner, s.Policy.Style
	c.StartedBy, c.EndedBy, c.EndMessage, c.Intent = r.StartedBy, r.EndedBy, r.EndMessage, r.Phase.Intent()
	c.Batches = toInt32(len(s.Policy.Batches))
	c.StableRevision, c.UpdateRevision = r.StableRevision, r.UpdateRevision
	c.StartTime, c.ProgressTime, c.Deadline = timestampOf(r.StartedAt), timestampOf(n.ProgressAt), timestampOf(decision.Deadline)
	c.BatchPlan = batchPlan(s)
	if n.Routed && r.Phase == record.Progressing {
		c.RequestedWeight = ptr.To(toInt32(r.Traffic.RequestedWeight()))
	}
	if t := s.Target(); t != nil {
		c.Target = t.Groups
		if t.Batch != nil && *t.Batch < len(s.Policy.Batches) {
			c.CurrentBatch = ptr.To(toInt32(*t.Batch))
		}
	}
	for _, w := range s.Added {
		c.CanaryWorkload = w.Name
	}
	return c
}

// batchPlan returns the policy's batches in groups at the current replicas.
func batchPlan(s *observe.Snapshot) []*pb.Batch {
	all := make([]*pb.Batch, 0, len(s.Policy.Batches))
	for _, q := range s.Policy.Batches {
		all = append(all, &pb.Batch{Target: q.String(), Groups: toInt32(q.Up(s.Stable.Replicas))})
	}
	return all
}

// maxGroupRows is how many groups an answer lists: with long messages they stay below the 4 MiB that gRPC's clients accept by default. Of
// groups that do not exist it lists fewer: anyone can write a large number into a spec.
const maxGroupRows, maxMissingRows = 5000, 100

// addGroups adds at most so many groups, stable ones first, and how many it leaves out: missing ones before any that exists.
func addGroups(c *pb.BatchContext, s *observe.Snapshot, most int) {
	update := s.Stable.Revision
	if s.Record != nil && s.Record.Release != nil {
		update = s.Record.Release.UpdateRevision
	}
	left, missing, omitted := most, most, 0
	for _, w := range s.Workloads() {
		for _, g := range w.Groups {
			if groupExists(g) {
				missing--
			}
		}
	}
	missing = min(missing, maxMissingRows)
	add := func(w plan.Workload, role pb.GroupRole, updated func(plan.Group) bool) {
		for g, n := range s.Awaited(w) {
			list := min(n, left)
			if !groupExists(g) {
				list = max(min(list, missing), 0)
				missing -= list
			}
			left, omitted = left-list, omitted+n-list
			for i := range list {
				// Awaited yields a run of missing groups once, with its length.
				if i > 0 {
					g = w.MissingGroup(g.Index + 1)
				}
				c.Groups = append(c.Groups, groupRow(g, role, updated(g)))
			}
		}
	}
	add(s.Stable, pb.GroupRole_GROUP_ROLE_STABLE, func(g plan.Group) bool { return update != "" && g.Revision == update })
	for _, w := range s.Added {
		add(w, pb.GroupRole_GROUP_ROLE_CANARY, func(g plan.Group) bool { return w.Carries == update && g.Revision != "" })
	}
	c.GroupsOmitted = toInt32(min(omitted, math.MaxInt32))
}

// groupExists reports whether pods of a group exist that count.
func groupExists(g plan.Group) bool { return g.Revision != "" || g.ReadyPods > 0 }

func groupRow(g plan.Group, role pb.GroupRole, updated bool) *pb.Group {
	since := g.ReadySince
	if !g.Ready {
		since = g.LostAt
	}
	return &pb.Group{
		Index: toInt32(g.Index), Role: role, Leader: g.Leader, Revision: g.Revision, Updated: updated,
		// A copied pod has the group's labels too, so the group may seem to have more pods than its size.
		Ready: g.Ready, ReadyPods: toInt32(min(g.ReadyPods, g.Pods)), Pods: toInt32(g.Pods), Since: timestampOf(since),
		Reason: g.Reason, Pod: g.Pod, Message: g.Message,
	}
}

func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// toInt32 narrows a count; LWS itself allows no more than 2^31-1 pods.
func toInt32(n int) int32 { return int32(n) } //nolint:gosec // see above
