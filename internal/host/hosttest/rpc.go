// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// GetDriverInfo says that everything is served but Plan, ListRevisions, Undo and mirrors.
func (d *Driver) GetDriverInfo(context.Context, *pb.GetDriverInfoRequest) (*pb.GetDriverInfoResponse, error) {
	info := &pb.GetDriverInfoResponse{
		Name: "fake.lockstep.dev", Version: "v0.0.0",
		Kinds: []*pb.WorkloadKind{{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}},
		Styles: []pb.Style{
			pb.Style_STYLE_CANARY, pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION,
		},
		Capabilities: []pb.Capability{
			pb.Capability_CAPABILITY_ADOPT, pb.Capability_CAPABILITY_RELEASE, pb.Capability_CAPABILITY_WATCH,
			pb.Capability_CAPABILITY_WAIT,
		},
	}
	if !d.NoTraffic {
		info.Capabilities = append(info.Capabilities,
			pb.Capability_CAPABILITY_TRAFFIC_WEIGHT, pb.Capability_CAPABILITY_TRAFFIC_HEADER_ROUTE)
	}
	return info, nil
}

// Adopt moves an unmanaged workload to HOLDING.
func (d *Driver) Adopt(_ context.Context, request *pb.AdoptRequest) (*pb.AdoptResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("Adopt")
	if err := d.find(request.GetWorkload(), ""); err != nil {
		return nil, err
	}
	action := pb.Action_ACTION_UNCHANGED
	if d.context.GetState() == pb.State_STATE_UNMANAGED {
		action = pb.Action_ACTION_CONFIGURED
		d.set(func(c *pb.BatchContext) { c.State = pb.State_STATE_HOLDING })
	}
	return &pb.AdoptResponse{Action: action, Context: d.context}, nil
}

// Disown moves a workload without a release to UNMANAGED.
func (d *Driver) Disown(_ context.Context, request *pb.DisownRequest) (*pb.DisownResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("Disown")
	if err := d.find(request.GetWorkload(), ""); err != nil {
		return nil, err
	}
	if d.unfinished() {
		return nil, d.inProgress()
	}
	d.set(func(c *pb.BatchContext) { c.State, c.Reason = pb.State_STATE_UNMANAGED, "Disowned" })
	return &pb.DisownResponse{Action: pb.Action_ACTION_CONFIGURED}, nil
}

// Initialize begins a release at HOLDING.
func (d *Driver) Initialize(ctx context.Context, request *pb.InitializeRequest) (*pb.InitializeResponse, error) {
	action, err := d.begin(request)
	if err != nil {
		return nil, err
	}
	return &pb.InitializeResponse{Action: action, Context: d.settle(ctx, request.GetWait())}, nil
}

func (d *Driver) begin(request *pb.InitializeRequest) (pb.Action, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("Initialize " + request.GetReleaseId())
	if err := d.find(request.GetWorkload(), ""); err != nil {
		return 0, err
	}
	if request.GetReleaseId() == d.context.GetReleaseId() {
		if !proto.Equal(d.policy, request.GetPolicy()) {
			return 0, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED,
				"release %s was begun with another policy", request.GetReleaseId())
		}
		if d.OnReinitialize != nil {
			d.set(d.OnReinitialize)
		}
		return pb.Action_ACTION_UNCHANGED, nil
	}
	if d.unfinished() {
		return 0, d.inProgress()
	}
	d.policy = request.GetPolicy()
	return pb.Action_ACTION_CONFIGURED, d.apply(d.OnInitialize, func(c *pb.BatchContext) {
		c.ReleaseId, c.Owner, c.Style = request.GetReleaseId(), request.GetOwner(), d.policy.GetStyle()
		c.State, c.Reason, c.Message = pb.State_STATE_HOLDING, "Initialized", "waits for the first batch"
		c.CurrentBatch, c.Target = nil, ""
		c.Batches = int32(len(d.policy.GetBatches())) //nolint:gosec // A test has a few.
		c.TrafficWeight, c.TrafficBasis = 0, pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS
		if d.policy.GetTraffic() != nil {
			c.TrafficBasis = pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
		}
	})
}

// UpgradeBatch moves to a batch, which is ready at once, with one group per batch.
func (d *Driver) UpgradeBatch(ctx context.Context, request *pb.UpgradeBatchRequest) (*pb.UpgradeBatchResponse, error) {
	if err := d.move(request); err != nil {
		return nil, err
	}
	return &pb.UpgradeBatchResponse{
		Action: pb.Action_ACTION_CONFIGURED, Context: d.settle(ctx, request.GetWait()),
	}, nil
}

func (d *Driver) move(request *pb.UpgradeBatchRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	batch := request.GetBatch()
	d.log("UpgradeBatch " + fmt.Sprint(batch))
	if err := d.find(request.GetWorkload(), request.GetReleaseId()); err != nil {
		return err
	}
	if want := request.GetUpdateRevision(); want != "" && want != d.context.GetUpdateRevision() {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
			"the template is at revision %s, not %s", d.context.GetUpdateRevision(), want)
	}
	if d.finalizing() {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "the release is being finalized")
	}
	if d.context.CurrentBatch != nil && d.context.GetCurrentBatch() >= batch {
		return nil
	}
	upgrade := d.OnUpgrade
	if upgrade == nil {
		upgrade = func(int32, *pb.BatchContext) error { return nil }
	}
	return d.apply(func(c *pb.BatchContext) error { return upgrade(batch, c) }, func(c *pb.BatchContext) {
		c.State, c.Reason, c.Message = pb.State_STATE_READY, "BatchReady", "the batch is complete"
		c.CurrentBatch, c.Target = proto.Int32(batch), d.policy.GetBatches()[batch]
		c.Planned, c.Desired, c.Updated, c.UpdatedReady = batch+1, batch+1, batch+1, batch+1
		c.Total = c.GetReplicas() + batch + 1
		if !routed(c) {
			c.TrafficWeight = 100 * (batch + 1) / c.GetTotal()
		}
	})
}

// SetWeight sends the requests where they are to go, at once.
func (d *Driver) SetWeight(ctx context.Context, request *pb.SetWeightRequest) (*pb.SetWeightResponse, error) {
	action, err := d.weigh(request)
	if err != nil {
		return nil, err
	}
	c := d.settle(ctx, request.GetWait())
	if c.GetTrafficWeight() == request.GetWeight() {
		return &pb.SetWeightResponse{Action: action, Verified: true}, nil
	}
	return &pb.SetWeightResponse{Action: action, Reason: c.GetReason(), Message: c.GetMessage()}, nil
}

// SetHeaderRoute sends what matches where it is to go, at once.
func (d *Driver) SetHeaderRoute(_ context.Context, request *pb.SetHeaderRouteRequest) (*pb.SetHeaderRouteResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := request.GetMatches()[0]
	d.log(fmt.Sprintf("SetHeaderRoute %s %s=%s", request.GetName(), m.GetName(), m.GetExact()+m.GetCookie()))
	if err := d.checkRouted(request); err != nil {
		return nil, err
	}
	return &pb.SetHeaderRouteResponse{Action: pb.Action_ACTION_CONFIGURED}, nil
}

// checkRouted refuses what every request about traffic is refused for.
func (d *Driver) checkRouted(request interface {
	GetWorkload() *pb.WorkloadRef
	GetReleaseId() string
	GetUpdateRevision() string
}) error {
	if err := d.find(request.GetWorkload(), request.GetReleaseId()); err != nil {
		return err
	}
	if want := request.GetUpdateRevision(); want != "" && want != d.context.GetUpdateRevision() {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
			"the template is at revision %s, not %s", d.context.GetUpdateRevision(), want)
	}
	if !routed(d.context) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "the release has no policy.traffic")
	}
	if d.finalizing() {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "the release is being finalized")
	}
	return nil
}

func (d *Driver) weigh(request *pb.SetWeightRequest) (pb.Action, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("SetWeight " + fmt.Sprint(request.GetWeight()))
	if err := d.checkRouted(request); err != nil {
		return 0, err
	}
	action := pb.Action_ACTION_CONFIGURED
	if d.context.GetTrafficWeight() == request.GetWeight() {
		action = pb.Action_ACTION_UNCHANGED
	}
	set := d.OnSetWeight
	if set == nil {
		set = func(int32, *pb.BatchContext) error { return nil }
	}
	return action, d.apply(func(c *pb.BatchContext) error { return set(request.GetWeight(), c) }, func(c *pb.BatchContext) {
		c.TrafficWeight = request.GetWeight()
	})
}

func routed(c *pb.BatchContext) bool {
	return c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
}

// CalculateBatchContext returns the context.
func (d *Driver) CalculateBatchContext(
	_ context.Context, request *pb.CalculateBatchContextRequest,
) (*pb.CalculateBatchContextResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("CalculateBatchContext")
	if d.OnCalculate != nil {
		if err := d.OnCalculate(); err != nil {
			return nil, err
		}
	}
	if err := d.find(request.GetWorkload(), request.GetReleaseId()); err != nil {
		return nil, err
	}
	return &pb.CalculateBatchContextResponse{Context: d.context}, nil
}

// WatchBatchContext sends the context at once and at each change.
func (d *Driver) WatchBatchContext(
	request *pb.WatchBatchContextRequest, stream pb.WorkloadDriver_WatchBatchContextServer,
) error {
	var sent *pb.BatchContext
	for {
		d.mu.Lock()
		err, c, changed := d.find(request.GetWorkload(), request.GetReleaseId()), d.context, d.changed
		d.mu.Unlock()
		if err != nil {
			return err
		}
		if !proto.Equal(sent, c) {
			sent = c
			if err := stream.Send(&pb.WatchBatchContextResponse{Context: c}); err != nil {
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

// Finalize ends the release at once.
func (d *Driver) Finalize(ctx context.Context, request *pb.FinalizeRequest) (*pb.FinalizeResponse, error) {
	if err := d.end(request); err != nil {
		return nil, err
	}
	c := d.settle(ctx, request.GetWait())
	return &pb.FinalizeResponse{Action: pb.Action_ACTION_CONFIGURED, Context: c, Done: ended(c)}, nil
}

func (d *Driver) end(request *pb.FinalizeRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("Finalize " + strings.TrimPrefix(request.GetIntent().String(), "FINALIZE_INTENT_"))
	if err := d.find(request.GetWorkload(), request.GetReleaseId()); err != nil {
		return err
	}
	state, revision, other := pb.State_STATE_COMPLETED, d.context.GetUpdateRevision(), pb.State_STATE_ROLLED_BACK
	if request.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
		state, revision, other = other, d.context.GetStableRevision(), state
	}
	if d.context.GetState() == other {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "the release has ended the other way")
	}
	takenBack := d.context.GetState() == pb.State_STATE_PROMOTING && state == pb.State_STATE_ROLLED_BACK
	if d.finalizing() && !takenBack {
		return nil
	}
	want := request.GetUpdateRevision()
	if state == pb.State_STATE_COMPLETED && want != "" && want != d.context.GetUpdateRevision() {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
			"the template is at revision %s, not %s", d.context.GetUpdateRevision(), want)
	}
	finalize := d.OnFinalize
	if finalize == nil {
		finalize = func(pb.FinalizeIntent, *pb.BatchContext) error { return nil }
	}
	return d.apply(func(c *pb.BatchContext) error { return finalize(request.GetIntent(), c) }, func(c *pb.BatchContext) {
		c.State, c.Reason, c.Message = state, "Finalized", "all groups run revision "+revision
		c.Updated, c.UpdatedReady, c.StableReady, c.Total = 0, 0, c.GetReplicas(), c.GetReplicas()
		c.TrafficWeight, c.Desired = 0, 0
		c.EndMessage = request.GetMessage()
	})
}

// apply changes the context by both functions, or not at all. The lock is held.
func (d *Driver) apply(hook func(*pb.BatchContext) error, change func(*pb.BatchContext)) error {
	next := proto.CloneOf(d.context)
	change(next)
	if hook != nil {
		if err := hook(next); err != nil {
			return err
		}
	}
	d.context = next
	d.wake()
	return nil
}

func (d *Driver) unfinished() bool {
	s := d.context.GetState()
	return d.context.GetReleaseId() != "" && !ended(d.context) && s != pb.State_STATE_NOTHING_TO_RELEASE
}

func (d *Driver) finalizing() bool {
	s := d.context.GetState()
	return s == pb.State_STATE_PROMOTING || s == pb.State_STATE_ROLLING_BACK || ended(d.context)
}

func ended(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_COMPLETED || c.GetState() == pb.State_STATE_ROLLED_BACK
}

func (d *Driver) inProgress() error {
	err := drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "release %s of %s holds workload %s/%s",
		d.context.GetReleaseId(), d.context.GetOwner(), d.context.GetWorkload().GetNamespace(),
		d.context.GetWorkload().GetName())
	return drivererr.WithMetadata(err, "release_id", d.context.GetReleaseId())
}
