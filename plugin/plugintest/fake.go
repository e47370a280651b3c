// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
)

// FakeDriver is a driver in memory. It keeps the promises of SPEC.md for Adopt, Disown, Initialize, UpgradeBatch,
// CalculateBatchContext, WatchBatchContext, WatchWorkloads and Finalize, and lists no other capability. Its groups are ready
// at once. It is safe for concurrent use.
type FakeDriver struct {
	pb.UnimplementedWorkloadDriverServer
	pb.UnimplementedTrafficRouterServer

	mu        sync.Mutex
	workloads map[string]*workload
	// changed is closed and replaced at each change.
	changed chan struct{}
}

var (
	_ pb.WorkloadDriverServer = (*FakeDriver)(nil)
	_ pb.TrafficRouterServer  = (*FakeDriver)(nil)
)

// NewFakeDriver returns a driver without workloads.
func NewFakeDriver() *FakeDriver {
	return &FakeDriver{workloads: make(map[string]*workload), changed: make(chan struct{})}
}

// workload is one workload and its last release.
type workload struct {
	ref      *pb.WorkloadRef
	replicas int32
	revision string
	stable   string
	adopted  bool
	release  *release
}

// release is the state of one release.
type release struct {
	id, owner string
	policy    *pb.ReleasePolicy
	update    string
	batch     *int32
	target    string
	planned   int32
	intent    pb.FinalizeIntent
	message   string // of the intent
}

// SetWorkload creates a workload or gives it another template: revision is its hash.
func (d *FakeDriver) SetWorkload(namespace, name string, replicas int32, revision string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workloads[namespace+"/"+name]
	if w == nil {
		w = &workload{ref: &pb.WorkloadRef{Namespace: namespace, Name: name}, stable: revision}
		d.workloads[namespace+"/"+name] = w
	}
	w.replicas, w.revision = replicas, revision
	if !w.adopted {
		w.stable = revision
	}
	d.notify()
}

// notify wakes the watchers. d.mu is held.
func (d *FakeDriver) notify() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// action returns the action of a call, and wakes the watchers if it wrote. d.mu is held.
func (d *FakeDriver) action(wrote bool) pb.Action {
	if !wrote {
		return pb.Action_ACTION_UNCHANGED
	}
	d.notify()
	return pb.Action_ACTION_CONFIGURED
}

// find returns the workload. d.mu is held.
func (d *FakeDriver) find(ref *pb.WorkloadRef) (*workload, error) {
	if ref.GetNamespace() == "" || ref.GetName() == "" {
		return nil, drivererr.Invalid(drivererr.FieldViolation{Field: "workload", Description: "namespace and name are required"})
	}
	w := d.workloads[ref.GetNamespace()+"/"+ref.GetName()]
	if w == nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND,
			"%s/%s does not exist", ref.GetNamespace(), ref.GetName())
	}
	return w, nil
}

// findRelease returns the workload with the release of this id. d.mu is held.
func (d *FakeDriver) findRelease(ref *pb.WorkloadRef, id string) (*workload, error) {
	w, err := d.find(ref)
	if err != nil {
		return nil, err
	}
	if w.release == nil || w.release.id != id {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND,
			"%s/%s has no release %q", ref.GetNamespace(), ref.GetName(), id)
	}
	return w, nil
}

// inFlight reports whether a release holds the workload.
func (w *workload) inFlight() bool {
	return w.release != nil && w.release.intent == pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED
}

// held reports whether a release excludes others: a release of nothing does not.
func (w *workload) held() bool {
	return w.inFlight() && w.release.update != w.stable
}

// GetDriverInfo implements the contract.
func (*FakeDriver) GetDriverInfo(context.Context, *pb.GetDriverInfoRequest) (*pb.GetDriverInfoResponse, error) {
	return &pb.GetDriverInfoResponse{
		Name:    "fake.lockstep.dev",
		Version: "v0.0.0",
		Kinds:   []*pb.WorkloadKind{{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}},
		Styles:  []pb.Style{pb.Style_STYLE_PARTITION, pb.Style_STYLE_CANARY},
		Capabilities: []pb.Capability{
			pb.Capability_CAPABILITY_ADOPT, pb.Capability_CAPABILITY_RELEASE, pb.Capability_CAPABILITY_WATCH,
			pb.Capability_CAPABILITY_WATCH_WORKLOADS,
		},
	}, nil
}

// Adopt implements the contract.
func (d *FakeDriver) Adopt(_ context.Context, req *pb.AdoptRequest) (*pb.AdoptResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w, err := d.find(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	wrote := !w.adopted
	w.adopted = true
	return &pb.AdoptResponse{Action: d.action(wrote), Context: w.context()}, nil
}

// Disown implements the contract.
func (d *FakeDriver) Disown(_ context.Context, req *pb.DisownRequest) (*pb.DisownResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w, err := d.find(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if w.held() {
		return nil, w.inProgress()
	}
	wrote := w.adopted
	w.adopted, w.release, w.stable = false, nil, w.revision
	return &pb.DisownResponse{Action: d.action(wrote)}, nil
}

func (w *workload) inProgress() error {
	err := drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "release %q is in flight", w.release.id)
	return drivererr.WithMetadata(err, "release_id", w.release.id)
}

// Initialize implements the contract.
func (d *FakeDriver) Initialize(_ context.Context, req *pb.InitializeRequest) (*pb.InitializeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w, err := d.find(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := validatePolicy(req); err != nil {
		return nil, err
	}
	if w.release != nil && w.release.id == req.GetReleaseId() {
		if !proto.Equal(w.release.policy, req.GetPolicy()) {
			return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED, "release %q has another policy", w.release.id)
		}
		return &pb.InitializeResponse{Action: d.action(false), Context: w.context()}, nil
	}
	if w.held() {
		return nil, w.inProgress()
	}
	w.adopted = true
	w.release = &release{id: req.GetReleaseId(), owner: req.GetOwner(), policy: proto.CloneOf(req.GetPolicy()), update: w.revision}
	return &pb.InitializeResponse{Action: d.action(true), Context: w.context()}, nil
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
func (d *FakeDriver) UpgradeBatch(_ context.Context, req *pb.UpgradeBatchRequest) (*pb.UpgradeBatchResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w, err := d.findRelease(req.GetWorkload(), req.GetReleaseId())
	if err != nil {
		return nil, err
	}
	r := w.release
	if !w.inFlight() {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "release %q has ended", r.id)
	}
	if rev := req.GetUpdateRevision(); rev != "" && rev != r.update {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, "update revision is %s, not %s", r.update, rev)
	}
	target, batch, err := r.resolve(req)
	if err != nil {
		return nil, err
	}
	planned, err := groups(target, w.replicas)
	if err != nil {
		return nil, drivererr.Invalid(drivererr.FieldViolation{Field: "groups", Description: err.Error()})
	}
	wrote := planned > r.planned || r.target == ""
	if wrote {
		r.target, r.batch, r.planned = target, batch, planned
	}
	return &pb.UpgradeBatchResponse{Action: d.action(wrote), Context: w.context()}, nil
}

// resolve turns a batch into its target.
func (r *release) resolve(req *pb.UpgradeBatchRequest) (target string, batch *int32, err error) {
	batches := r.policy.GetBatches()
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

// CalculateBatchContext implements the contract.
func (d *FakeDriver) CalculateBatchContext(
	_ context.Context, req *pb.CalculateBatchContextRequest,
) (*pb.CalculateBatchContextResponse, error) {
	state, _, err := d.look(req.GetWorkload(), req.GetReleaseId())
	if err != nil {
		return nil, err
	}
	return &pb.CalculateBatchContextResponse{Context: state}, nil
}

// WatchBatchContext implements the contract.
func (d *FakeDriver) WatchBatchContext(
	req *pb.WatchBatchContextRequest, stream grpc.ServerStreamingServer[pb.WatchBatchContextResponse],
) error {
	var last *pb.BatchContext
	for {
		state, changed, err := d.look(req.GetWorkload(), req.GetReleaseId())
		if err != nil {
			return err
		}
		if !proto.Equal(last, state) {
			if err := stream.Send(&pb.WatchBatchContextResponse{Context: state}); err != nil {
				return err
			}
			last = state
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
		w := d.workloads[key]
		if namespace != "" && namespace != w.ref.GetNamespace() {
			continue
		}
		switch state := w.context(); {
		case w.adopted && !proto.Equal(sent[key], state):
			sent[key] = state
			changes = append(changes, &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{Context: state}})
		case !w.adopted && sent[key] != nil:
			delete(sent, key)
			changes = append(changes, &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: proto.CloneOf(w.ref)}})
		}
	}
	return changes, d.changed
}

// look returns the state of the workload, and a channel that is closed at the next change.
func (d *FakeDriver) look(ref *pb.WorkloadRef, id string) (*pb.BatchContext, <-chan struct{}, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	find := func() (*workload, error) { return d.find(ref) }
	if id != "" {
		find = func() (*workload, error) { return d.findRelease(ref, id) }
	}
	w, err := find()
	if err != nil {
		return nil, nil, err
	}
	return w.context(), d.changed, nil
}

// Finalize implements the contract.
func (d *FakeDriver) Finalize(_ context.Context, req *pb.FinalizeRequest) (*pb.FinalizeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w, err := d.findRelease(req.GetWorkload(), req.GetReleaseId())
	if err != nil {
		return nil, err
	}
	ends := []pb.FinalizeIntent{pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK}
	if !slices.Contains(ends, req.GetIntent()) {
		return nil, drivererr.Invalid(drivererr.FieldViolation{Field: "intent", Description: "is required"})
	}
	r := w.release
	promote := req.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	if rev := req.GetUpdateRevision(); promote && w.inFlight() && rev != "" && rev != r.update {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, "update revision is %s, not %s", r.update, rev)
	}
	wrote := w.inFlight()
	if !wrote && r.intent != req.GetIntent() {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "release %q ended with %v", r.id, r.intent)
	}
	if wrote {
		r.intent, r.message = req.GetIntent(), strings.ToValidUTF8(req.GetMessage()[:min(len(req.GetMessage()), 512)], "")
	}
	if r.intent == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE {
		w.stable = r.update
	}
	return &pb.FinalizeResponse{Action: d.action(wrote), Context: w.context(), Done: true}, nil
}
