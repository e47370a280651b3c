// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Subject is the workload that Conformance releases.
type Subject struct {
	// Workload exists, is not adopted, and is at rest. Required.
	Workload *pb.WorkloadRef
	// Policy has at least one batch, and its first asks for at least one group. Required.
	Policy *pb.ReleasePolicy
	// ReleaseID is the id to use. Empty means "conformance".
	ReleaseID string
	// Change gives the workload a new template. It is called once, under hold. Required.
	Change func(ctx context.Context) error
	// Timeout bounds each wait for the driver to settle. Zero means one minute.
	Timeout time.Duration
}

// Conformance drives one release to its rollback and checks the promises of SPEC.md that are visible to a host: repeated
// RPCs change nothing, error reasons, targets that never decrease, an end that is final. It leaves the workload at rest, with
// the new template.
func Conformance(t *testing.T, client *plugin.Client, subject Subject) {
	t.Helper()
	if subject.ReleaseID == "" {
		subject.ReleaseID = "conformance"
	}
	if subject.Timeout == 0 {
		subject.Timeout = time.Minute
	}
	r := &run{client: client, Subject: subject}
	steps := []struct {
		name string
		step func(*testing.T)
	}{
		{"requests that are wrong", r.refusals},
		{"adopt", r.adopt},
		{"initialize", r.initialize},
		{"upgrade", r.upgrade},
		{"read", r.read},
		{"finalize", r.finalize},
		{"disown", r.disown},
	}
	for _, s := range steps {
		if !t.Run(s.name, s.step) {
			return
		}
	}
}

// Acted is a response with an action.
type Acted interface {
	proto.Message
	GetAction() pb.Action
}

// Idempotent makes a call, waits with wait, makes the call again, and fails unless the second one changed nothing.
// It returns the second response. A nil wait waits for nothing.
func Idempotent[Req any, Resp Acted](
	t testing.TB, wait func(testing.TB), call func(context.Context, Req) (Resp, error), req Req,
) Resp {
	t.Helper()
	if _, err := call(t.Context(), req); err != nil {
		t.Fatalf("first call: %v", err)
	}
	if wait != nil {
		wait(t)
	}
	resp, err := call(t.Context(), req)
	if err != nil {
		t.Fatalf("second call: %v", err)
	}
	if got := resp.GetAction(); got != pb.Action_ACTION_UNCHANGED {
		t.Errorf("action of the second call is %v, want UNCHANGED", got)
	}
	return resp
}

// WantReason fails unless err carries the reason.
func WantReason(t testing.TB, err error, want pb.ErrorReason) {
	t.Helper()
	if got := plugin.Reason(err); got != want {
		t.Errorf("reason is %v (%v), want %v", got, err, want)
	}
}

// pollInterval is how often a run polls for a settled state.
const pollInterval = 50 * time.Millisecond

// run is one Conformance.
type run struct {
	Subject

	client *plugin.Client
}

// plain drops the call options of a client's method.
func plain[Req, Resp any](
	call func(context.Context, Req, ...grpc.CallOption) (Resp, error)) func(context.Context, Req,
) (Resp, error) {
	return func(ctx context.Context, req Req) (Resp, error) { return call(ctx, req) }
}

// waitSettled waits for a settled state.
func (r *run) waitSettled(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), r.Timeout)
	defer cancel()
	for {
		c := r.now(t)
		if plugin.Settled(c.GetState()) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still %v (%s) after %v: %s", c.GetState(), c.GetReason(), r.Timeout, c.GetMessage())
		case <-time.After(pollInterval):
		}
	}
}

func (r *run) now(t testing.TB) *pb.BatchContext {
	t.Helper()
	resp, err := r.client.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{Workload: r.Workload})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetContext()
}

func (r *run) refusals(t *testing.T) {
	ctx := t.Context()
	_, err := r.client.Adopt(ctx, &pb.AdoptRequest{})
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST)
	missing := proto.CloneOf(r.Workload)
	missing.Name += "-is-not-there"
	_, err = r.client.Adopt(ctx, &pb.AdoptRequest{Workload: missing})
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND)
	_, err = r.client.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: missing})
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND)
	_, err = r.client.Initialize(ctx, &pb.InitializeRequest{
		Workload: r.Workload, ReleaseId: r.ReleaseID, Policy: &pb.ReleasePolicy{Batches: r.Policy.GetBatches()},
	})
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST)
	_, err = r.client.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
		Workload: r.Workload, ReleaseId: r.ReleaseID, Target: &pb.UpgradeBatchRequest_Batch{},
	})
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND)
}

func (r *run) adopt(t *testing.T) {
	Idempotent(t, r.waitSettled, plain(r.client.Adopt), &pb.AdoptRequest{Workload: r.Workload})
	if err := r.Change(t.Context()); err != nil {
		t.Fatalf("change the template: %v", err)
	}
}

func (r *run) initialize(t *testing.T) {
	ctx := t.Context()
	req := &pb.InitializeRequest{Workload: r.Workload, ReleaseId: r.ReleaseID, Policy: r.Policy, Owner: "plugintest"}
	resp := Idempotent(t, r.waitSettled, plain(r.client.Initialize), req)
	if got := resp.GetContext(); got.GetReleaseId() != r.ReleaseID || got.GetState() != pb.State_STATE_HOLDING {
		t.Errorf("release %q is %v, want %q and HOLDING", got.GetReleaseId(), got.GetState(), r.ReleaseID)
	}

	other := proto.CloneOf(req)
	other.Policy.Batches = append(other.Policy.Batches, "100%")
	_, err := r.client.Initialize(ctx, other)
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED)
	another := proto.CloneOf(req)
	another.ReleaseId += "-2"
	_, err = r.client.Initialize(ctx, another)
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS)
	_, err = r.client.Disown(ctx, &pb.DisownRequest{Workload: r.Workload})
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS)
}

func (r *run) upgrade(t *testing.T) {
	ctx := t.Context()
	_, err := r.client.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
		Workload: r.Workload, ReleaseId: r.ReleaseID, UpdateRevision: "another", Target: &pb.UpgradeBatchRequest_Batch{},
	})
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_REVISION_CHANGED)

	req := &pb.UpgradeBatchRequest{Workload: r.Workload, ReleaseId: r.ReleaseID, Target: &pb.UpgradeBatchRequest_Batch{}}
	resp := Idempotent(t, r.waitSettled, plain(r.client.UpgradeBatch), req)
	before := resp.GetContext()
	if before.GetState() != pb.State_STATE_READY || before.GetUpdatedReady() < before.GetPlanned()-before.GetFailureThreshold() {
		t.Errorf("state is %v with %d of %d ready, want READY", before.GetState(), before.GetUpdatedReady(), before.GetPlanned())
	}

	lower, err := r.client.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
		Workload: r.Workload, ReleaseId: r.ReleaseID, Target: &pb.UpgradeBatchRequest_Groups{Groups: "0"},
	})
	if err != nil {
		t.Fatalf("ask for less: %v", err)
	}
	if lower.GetAction() != pb.Action_ACTION_UNCHANGED || lower.GetContext().GetPlanned() != before.GetPlanned() {
		t.Errorf("asked for less: %v and planned %d, want UNCHANGED and %d",
			lower.GetAction(), lower.GetContext().GetPlanned(), before.GetPlanned())
	}
}

func (r *run) read(t *testing.T) {
	first, second := r.now(t), r.now(t)
	if diff := cmp.Diff(first, second, protocmp.Transform()); diff != "" {
		t.Errorf("two reads of a settled release differ (-first +second):\n%s", diff)
	}
	if !r.client.Has(pb.Capability_CAPABILITY_WATCH) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), r.Timeout)
	defer cancel()
	for watched, err := range r.client.WatchBatchContext(ctx, &pb.WatchBatchContextRequest{Workload: r.Workload}) {
		if err != nil {
			t.Fatalf("watch: %v", err)
		}
		if diff := cmp.Diff(second, watched, protocmp.Transform()); diff != "" {
			t.Errorf("watch and calculate differ (-calculate +watch):\n%s", diff)
		}
		return
	}
	t.Error("watch ended without a message")
}

// keptMessage is how many bytes a driver keeps of FinalizeRequest.message.
const keptMessage = 512

func (r *run) finalize(t *testing.T) {
	ctx := t.Context()
	_, err := r.client.Finalize(ctx, &pb.FinalizeRequest{
		Workload: r.Workload, ReleaseId: r.ReleaseID, Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE, UpdateRevision: "another",
	})
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_REVISION_CHANGED)

	// A rollback needs no update revision.
	req := &pb.FinalizeRequest{
		Workload: r.Workload, ReleaseId: r.ReleaseID, Intent: pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK, UpdateRevision: "another",
		Message: "why " + strings.Repeat("o", 2*keptMessage),
	}
	resp := Idempotent(t, r.waitSettled, plain(r.client.Finalize), req)
	if !resp.GetDone() || resp.GetContext().GetState() != pb.State_STATE_ROLLED_BACK {
		t.Errorf("done is %v in state %v, want true and ROLLED_BACK", resp.GetDone(), resp.GetContext().GetState())
	}
	if got := resp.GetContext().GetIntent(); got != req.GetIntent() {
		t.Errorf("intent is %v, want %v", got, req.GetIntent())
	}
	if got := resp.GetContext().GetEndMessage(); !strings.HasPrefix(got, "why ooo") || len(got) > keptMessage {
		t.Errorf("end_message has %d bytes, want the first %d of the request's: %q", len(got), keptMessage, got)
	}
	_, err = r.client.Finalize(ctx, &pb.FinalizeRequest{
		Workload: r.Workload, ReleaseId: r.ReleaseID, Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE,
	})
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED)
	_, err = r.client.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
		Workload: r.Workload, ReleaseId: r.ReleaseID, Target: &pb.UpgradeBatchRequest_Batch{},
	})
	WantReason(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED)
}

func (r *run) disown(t *testing.T) {
	Idempotent(t, nil, plain(r.client.Disown), &pb.DisownRequest{Workload: r.Workload})
}
