// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
)

// GetDriverInfo implements the contract.
func (d *FakeDriver) GetDriverInfo(context.Context, *pb.GetDriverInfoRequest) (*pb.GetDriverInfoResponse, error) {
	info := &pb.GetDriverInfoResponse{
		Name:    "fake.lockstep.dev",
		Version: "v0.0.0",
		Kinds:   []*pb.WorkloadKind{{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}},
		Styles:  []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION},
		Capabilities: []pb.Capability{
			pb.Capability_CAPABILITY_ADOPT, pb.Capability_CAPABILITY_RELEASE, pb.Capability_CAPABILITY_WATCH,
			pb.Capability_CAPABILITY_WATCH_WORKLOADS, pb.Capability_CAPABILITY_WAIT,
		},
	}
	if !d.NoTraffic {
		info.Capabilities = append(info.Capabilities, pb.Capability_CAPABILITY_TRAFFIC_WEIGHT, pb.Capability_CAPABILITY_TRAFFIC_HEADER_ROUTE)
	}
	return info, nil
}

// Adopt implements the contract.
func (d *FakeDriver) Adopt(_ context.Context, req *pb.AdoptRequest) (*pb.AdoptResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("Adopt")
	w, err := d.find(req.GetWorkload(), "")
	if err != nil {
		return nil, err
	}
	wrote := w.context.GetState() == pb.State_STATE_UNMANAGED
	if wrote {
		d.set(w, func(c *pb.BatchContext) { c.State, c.Reason = pb.State_STATE_HOLDING, "AtRest" })
	}
	return &pb.AdoptResponse{Action: configured(wrote), Context: w.context}, nil
}

// Disown implements the contract.
func (d *FakeDriver) Disown(_ context.Context, req *pb.DisownRequest) (*pb.DisownResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("Disown")
	w, err := d.find(req.GetWorkload(), "")
	if err != nil {
		return nil, err
	}
	if err := w.checkFree(); err != nil {
		return nil, err
	}
	wrote := w.context.GetState() != pb.State_STATE_UNMANAGED
	if wrote {
		d.set(w, func(c *pb.BatchContext) {
			proto.Reset(c)
			proto.Merge(c, &pb.BatchContext{
				Workload: w.context.GetWorkload(), Replicas: w.context.GetReplicas(), Size: w.context.GetSize(),
				State: pb.State_STATE_UNMANAGED, Reason: "NotAdopted", TrafficBasis: pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS,
				StableRevision: w.context.GetTemplateRevision(), TemplateRevision: w.context.GetTemplateRevision(),
				UpdateRevision: w.context.GetTemplateRevision(),
			})
			count(c)
		})
	}
	return &pb.DisownResponse{Action: configured(wrote)}, nil
}

// Initialize implements the contract.
func (d *FakeDriver) Initialize(ctx context.Context, req *pb.InitializeRequest) (*pb.InitializeResponse, error) {
	wrote, err := d.initialize(req)
	if err != nil {
		return nil, err
	}
	return &pb.InitializeResponse{Action: configured(wrote), Context: d.wait(ctx, req.GetWorkload(), req.GetWait())}, nil
}

func (d *FakeDriver) initialize(req *pb.InitializeRequest) (wrote bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("Initialize", req.GetReleaseId())
	w, err := d.find(req.GetWorkload(), "")
	if err != nil {
		return false, err
	}
	if err := validatePolicy(req); err != nil {
		return false, err
	}
	if w.context.GetReleaseId() == req.GetReleaseId() {
		if w.policy != nil && !proto.Equal(w.policy, req.GetPolicy()) {
			return false, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED, "release %s was begun with another policy", req.GetReleaseId())
		}
		w.policy = proto.CloneOf(req.GetPolicy())
		return false, nil
	}
	if err := w.checkFree(); err != nil {
		return false, err
	}
	if err := checkRevision(req.GetTemplateRevision(), w.context.GetTemplateRevision()); err != nil {
		return false, err
	}
	w.policy = proto.CloneOf(req.GetPolicy())
	return true, d.apply(w, func(c *pb.BatchContext) {
		c.ReleaseId, c.Owner, c.Style = req.GetReleaseId(), req.GetOwner(), w.policy.GetStyle()
		c.UpdateRevision, c.Intent, c.EndMessage = c.GetTemplateRevision(), pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED, ""
		c.Batches = int32(len(w.policy.GetBatches())) //nolint:gosec // a policy has a handful of batches
		c.State, c.Reason, c.Message = pb.State_STATE_HOLDING, "Initialized", "waits for the first batch"
		if c.GetUpdateRevision() == c.GetStableRevision() {
			c.State, c.Reason, c.Message = pb.State_STATE_NOTHING_TO_RELEASE, "SameRevision", "all groups run the template"
		}
		c.TrafficBasis = pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS
		if w.policy.GetTraffic() != nil {
			c.TrafficBasis = pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
		}
		clearBatch(c)
	}, d.OnInitialize)
}

func validatePolicy(req *pb.InitializeRequest) error {
	var wrong []drivererr.FieldViolation
	if req.GetReleaseId() == "" {
		wrong = append(wrong, drivererr.FieldViolation{Field: "release_id", Description: "is required"})
	}
	if req.GetPolicy().GetStyle() == pb.Style_STYLE_UNSPECIFIED {
		wrong = append(wrong, drivererr.FieldViolation{Field: "policy.style", Description: "is required"})
	}
	if len(req.GetPolicy().GetBatches()) == 0 {
		wrong = append(wrong, drivererr.FieldViolation{Field: "policy.batches", Description: "at least one is required"})
	}
	for i, batch := range req.GetPolicy().GetBatches() {
		if _, err := groups(batch, 0); err != nil {
			wrong = append(wrong, drivererr.FieldViolation{Field: fmt.Sprintf("policy.batches[%d]", i), Description: err.Error()})
		}
	}
	return drivererr.Invalid(wrong...)
}

// UpgradeBatch implements the contract.
func (d *FakeDriver) UpgradeBatch(ctx context.Context, req *pb.UpgradeBatchRequest) (*pb.UpgradeBatchResponse, error) {
	wrote, err := d.upgrade(req)
	if err != nil {
		return nil, err
	}
	return &pb.UpgradeBatchResponse{Action: configured(wrote), Context: d.wait(ctx, req.GetWorkload(), req.GetWait())}, nil
}

func (d *FakeDriver) upgrade(req *pb.UpgradeBatchRequest) (wrote bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("UpgradeBatch", req.GetBatch())
	w, err := d.findRevision(req)
	if err != nil {
		return false, err
	}
	if err := w.checkOpen(); err != nil {
		return false, err
	}
	target, batch, err := w.resolve(req)
	if err != nil {
		return false, err
	}
	planned, err := groups(target, w.context.GetReplicas())
	if err != nil {
		return false, drivererr.Invalid(drivererr.FieldViolation{Field: "groups", Description: err.Error()})
	}
	later := batch != nil && w.context.CurrentBatch != nil && *batch > w.context.GetCurrentBatch()
	if w.context.GetTarget() != "" && planned <= w.context.GetPlanned() && !later {
		return false, nil
	}
	return true, d.apply(w, func(c *pb.BatchContext) {
		if c.GetState() == pb.State_STATE_NOTHING_TO_RELEASE {
			return
		}
		c.State, c.Reason, c.Message = pb.State_STATE_READY, "BatchReady", "the batch is complete"
		c.CurrentBatch, c.Target, c.Planned = batch, target, planned
		count(c)
	}, func(c *pb.BatchContext) error {
		if d.OnUpgrade == nil {
			return nil
		}
		return d.OnUpgrade(req.GetBatch(), c)
	})
}

// resolve turns a batch into its target.
func (w *workload) resolve(req *pb.UpgradeBatchRequest) (target string, batch *int32, err error) {
	batches := w.policy.GetBatches()
	switch asked := req.GetTarget().(type) {
	case *pb.UpgradeBatchRequest_Groups:
		return asked.Groups, nil, nil
	case *pb.UpgradeBatchRequest_Batch:
		if asked.Batch < 0 || int(asked.Batch) >= len(batches) {
			return "", nil, drivererr.Invalid(drivererr.FieldViolation{
				Field: "batch", Description: fmt.Sprintf("%d is not one of %d batches", asked.Batch, len(batches)),
			})
		}
		return batches[asked.Batch], proto.Int32(asked.Batch), nil
	default:
		return "", nil, drivererr.Invalid(drivererr.FieldViolation{Field: "target", Description: "is required"})
	}
}

// SetWeight implements the contract.
func (d *FakeDriver) SetWeight(ctx context.Context, req *pb.SetWeightRequest) (*pb.SetWeightResponse, error) {
	wrote, err := d.weigh(req)
	if err != nil {
		return nil, err
	}
	c := d.wait(ctx, req.GetWorkload(), req.GetWait())
	if c.GetTrafficWeight() == req.GetWeight() {
		return &pb.SetWeightResponse{Action: configured(wrote), Verified: true}, nil
	}
	return &pb.SetWeightResponse{Action: configured(wrote), Reason: c.GetReason(), Message: c.GetMessage()}, nil
}

func (d *FakeDriver) weigh(req *pb.SetWeightRequest) (wrote bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("SetWeight", req.GetWeight())
	w, err := d.findRevision(req)
	if err != nil {
		return false, err
	}
	if err := w.checkRouted(); err != nil {
		return false, err
	}
	wrote = w.context.GetTrafficWeight() != req.GetWeight()
	return wrote, d.apply(w, func(c *pb.BatchContext) { c.TrafficWeight, c.RequestedWeight = req.GetWeight(), &req.Weight }, func(c *pb.BatchContext) error {
		if d.OnSetWeight == nil {
			return nil
		}
		return d.OnSetWeight(req.GetWeight(), c)
	})
}

// SetHeaderRoute implements the contract.
func (d *FakeDriver) SetHeaderRoute(_ context.Context, req *pb.SetHeaderRouteRequest) (*pb.SetHeaderRouteResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := req.GetMatches()[0]
	d.log("SetHeaderRoute", req.GetName(), m.GetName()+"="+m.GetExact()+m.GetCookie())
	w, err := d.findRevision(req)
	if err != nil {
		return nil, err
	}
	if err := w.checkRouted(); err != nil {
		return nil, err
	}
	return &pb.SetHeaderRouteResponse{Action: pb.Action_ACTION_CONFIGURED}, nil
}

// checkRouted returns an error unless the release routes requests now.
func (w *workload) checkRouted() error {
	if !routed(w.context) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "the release has no policy.traffic")
	}
	return w.checkOpen()
}

// CalculateBatchContext implements the contract.
func (d *FakeDriver) CalculateBatchContext(
	_ context.Context, req *pb.CalculateBatchContextRequest,
) (*pb.CalculateBatchContextResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("CalculateBatchContext")
	if d.OnCalculate != nil {
		if err := d.OnCalculate(); err != nil {
			return nil, err
		}
	}
	w, err := d.find(req.GetWorkload(), req.GetReleaseId())
	if err != nil {
		return nil, err
	}
	return &pb.CalculateBatchContextResponse{Context: w.context}, nil
}

// WatchBatchContext implements the contract.
func (d *FakeDriver) WatchBatchContext(
	req *pb.WatchBatchContextRequest, stream grpc.ServerStreamingServer[pb.WatchBatchContextResponse],
) error {
	var sent *pb.BatchContext
	for {
		d.mu.Lock()
		w, err := d.find(req.GetWorkload(), req.GetReleaseId())
		if err != nil {
			d.mu.Unlock()
			return err
		}
		state, changed := w.context, d.changed
		d.mu.Unlock()
		if !proto.Equal(sent, state) {
			if err := stream.Send(&pb.WatchBatchContextResponse{Context: state}); err != nil {
				return err
			}
			sent = state
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		}
	}
}

// WatchWorkloads implements the contract.
func (d *FakeDriver) WatchWorkloads(
	req *pb.WatchWorkloadsRequest, stream grpc.ServerStreamingServer[pb.WatchWorkloadsResponse],
) error {
	sent := map[string]*pb.BatchContext{}
	for first := true; ; first = false {
		changes, changed := d.changes(req.GetNamespace(), sent)
		if first {
			changes = append(changes, &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Synced{Synced: true}})
		}
		for _, change := range changes {
			if err := stream.Send(change); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		}
	}
}

// changes returns what differs from sent, by name, and a channel that is closed at the next change.
func (d *FakeDriver) changes(namespace string, sent map[string]*pb.BatchContext) ([]*pb.WatchWorkloadsResponse, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var changes []*pb.WatchWorkloadsResponse
	for _, key := range slices.Sorted(maps.Keys(d.workloads)) {
		state := d.workloads[key].context
		if namespace != "" && namespace != state.GetWorkload().GetNamespace() {
			continue
		}
		switch adopted := state.GetState() != pb.State_STATE_UNMANAGED; {
		case adopted && !proto.Equal(sent[key], state):
			sent[key] = state
			changes = append(changes, &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{Context: state}})
		case !adopted && sent[key] != nil:
			delete(sent, key)
			changes = append(changes, &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: state.GetWorkload()}})
		}
	}
	return changes, d.changed
}

// Finalize implements the contract.
func (d *FakeDriver) Finalize(ctx context.Context, req *pb.FinalizeRequest) (*pb.FinalizeResponse, error) {
	wrote, err := d.finalize(req)
	if err != nil {
		return nil, err
	}
	c := d.wait(ctx, req.GetWorkload(), req.GetWait())
	return &pb.FinalizeResponse{Action: configured(wrote), Context: c, Done: ended(c)}, nil
}

func (d *FakeDriver) finalize(req *pb.FinalizeRequest) (wrote bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("Finalize", strings.TrimPrefix(req.GetIntent().String(), "FINALIZE_INTENT_"))
	w, err := d.find(req.GetWorkload(), req.GetReleaseId())
	if err != nil {
		return false, err
	}
	end, reason, revision, other := pb.State_STATE_COMPLETED, "Promoted", w.context.GetUpdateRevision(), pb.State_STATE_ROLLED_BACK
	switch req.GetIntent() {
	case pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE:
	case pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK:
		end, reason, revision, other = other, "RolledBack", w.context.GetStableRevision(), end
	default:
		return false, drivererr.Invalid(drivererr.FieldViolation{Field: "intent", Description: "is required"})
	}
	if w.context.GetState() == other {
		return false, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "release %s has ended the other way", req.GetReleaseId())
	}
	// A promotion that has not ended can be taken back.
	takenBack := w.context.GetState() == pb.State_STATE_PROMOTING && end == pb.State_STATE_ROLLED_BACK
	if finalizing(w.context) && !takenBack {
		return false, nil
	}
	if end == pb.State_STATE_COMPLETED {
		if err := checkRevision(req.GetUpdateRevision(), w.context.GetUpdateRevision()); err != nil {
			return false, err
		}
	}
	return true, d.apply(w, func(c *pb.BatchContext) {
		clearBatch(c)
		if end == pb.State_STATE_COMPLETED {
			c.Updated, c.UpdatedReady, c.StableReady = c.GetReplicas(), c.GetReplicas(), 0
		}
		c.State, c.Reason, c.Message, c.StableRevision = end, reason, "all groups run revision "+revision, revision
		c.Intent, c.EndMessage = req.GetIntent(), strings.ToValidUTF8(req.GetMessage()[:min(len(req.GetMessage()), keptMessage)], "")
	}, func(c *pb.BatchContext) error {
		if d.OnFinalize == nil {
			return nil
		}
		return d.OnFinalize(req.GetIntent(), c)
	})
}
