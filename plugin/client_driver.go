// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// GetDriverInfo requests the driver's current info. [Client.Info] returns the info read when the client connected.
func (c *Client) GetDriverInfo(
	ctx context.Context, req *pb.GetDriverInfoRequest, opts ...grpc.CallOption,
) (*pb.GetDriverInfoResponse, error) {
	return rpc[*pb.GetDriverInfoRequest, *pb.GetDriverInfoResponse]{
		name:  "GetDriverInfo",
		call:  c.driver.GetDriverInfo,
		check: checkInfo,
	}.do(ctx, c, req, opts)
}

// Adopt puts a workload at rest under hold.
func (c *Client) Adopt(ctx context.Context, req *pb.AdoptRequest, opts ...grpc.CallOption) (*pb.AdoptResponse, error) {
	return rpc[*pb.AdoptRequest, *pb.AdoptResponse]{
		name:       "Adopt",
		capability: pb.Capability_CAPABILITY_ADOPT,
		call:       c.driver.Adopt,
		check: func(r *pb.AdoptResponse) error {
			return errors.Join(checkAction(r.GetAction()), checkContext(r.GetContext()))
		},
	}.do(ctx, c, req, opts)
}

// Disown ends the hold and restores exactly what the user had.
func (c *Client) Disown(
	ctx context.Context, req *pb.DisownRequest, opts ...grpc.CallOption,
) (*pb.DisownResponse, error) {
	return rpc[*pb.DisownRequest, *pb.DisownResponse]{
		name:       "Disown",
		capability: pb.Capability_CAPABILITY_ADOPT,
		call:       c.driver.Disown,
		check:      func(r *pb.DisownResponse) error { return checkAction(r.GetAction()) },
	}.do(ctx, c, req, opts)
}

// Initialize begins a release.
func (c *Client) Initialize(
	ctx context.Context, req *pb.InitializeRequest, opts ...grpc.CallOption,
) (*pb.InitializeResponse, error) {
	return rpc[*pb.InitializeRequest, *pb.InitializeResponse]{
		name:       "Initialize",
		capability: pb.Capability_CAPABILITY_RELEASE,
		call:       c.driver.Initialize,
		check: func(r *pb.InitializeResponse) error {
			return errors.Join(checkAction(r.GetAction()), checkContext(r.GetContext()))
		},
	}.do(ctx, c, req, opts)
}

// UpgradeBatch moves the release to a batch or to an absolute target.
func (c *Client) UpgradeBatch(
	ctx context.Context, req *pb.UpgradeBatchRequest, opts ...grpc.CallOption,
) (*pb.UpgradeBatchResponse, error) {
	return rpc[*pb.UpgradeBatchRequest, *pb.UpgradeBatchResponse]{
		name:       "UpgradeBatch",
		capability: pb.Capability_CAPABILITY_RELEASE,
		call:       c.driver.UpgradeBatch,
		check: func(r *pb.UpgradeBatchResponse) error {
			return errors.Join(checkAction(r.GetAction()), checkContext(r.GetContext()))
		},
	}.do(ctx, c, req, opts)
}

// CalculateBatchContext returns the state of the workload and its release.
func (c *Client) CalculateBatchContext(
	ctx context.Context, req *pb.CalculateBatchContextRequest, opts ...grpc.CallOption,
) (*pb.CalculateBatchContextResponse, error) {
	return rpc[*pb.CalculateBatchContextRequest, *pb.CalculateBatchContextResponse]{
		name:       "CalculateBatchContext",
		capability: pb.Capability_CAPABILITY_RELEASE,
		call:       c.driver.CalculateBatchContext,
		check:      func(r *pb.CalculateBatchContextResponse) error { return checkContext(r.GetContext()) },
	}.do(ctx, c, req, opts)
}

// WatchBatchContext yields the state of the workload and its release, at once and after each change. It yields at most one
// error, as the last item, and none if the driver closes the stream. Leaving the loop ends the stream. [Follow]
// reconnects.
func (c *Client) WatchBatchContext(
	ctx context.Context, req *pb.WatchBatchContextRequest, opts ...grpc.CallOption,
) iter.Seq2[*pb.BatchContext, error] {
	items := streaming[*pb.WatchBatchContextRequest, pb.WatchBatchContextResponse]{
		name:       "WatchBatchContext",
		capability: pb.Capability_CAPABILITY_WATCH,
		call:       c.driver.WatchBatchContext,
		check:      func(r *pb.WatchBatchContextResponse) error { return checkContext(r.GetContext()) },
	}.items(ctx, c, req, opts)
	return func(yield func(*pb.BatchContext, error) bool) {
		for r, err := range items {
			if !yield(r.GetContext(), err) {
				return
			}
		}
	}
}

// WatchWorkloads yields every workload under hold, then a response with Synced, and then each change. It ends as
// WatchBatchContext does. [FollowWorkloads] reconnects.
func (c *Client) WatchWorkloads(
	ctx context.Context, req *pb.WatchWorkloadsRequest, opts ...grpc.CallOption,
) iter.Seq2[*pb.WatchWorkloadsResponse, error] {
	return streaming[*pb.WatchWorkloadsRequest, pb.WatchWorkloadsResponse]{
		name:       "WatchWorkloads",
		capability: pb.Capability_CAPABILITY_WATCH_WORKLOADS,
		call:       c.driver.WatchWorkloads,
		check:      checkWorkloads,
	}.items(ctx, c, req, opts)
}

// streaming describes an RPC of the client whose response is a stream.
type streaming[Req, Resp any] struct {
	name       string
	capability pb.Capability
	call       func(context.Context, Req, ...grpc.CallOption) (grpc.ServerStreamingClient[Resp], error)
	check      func(*Resp) error
}

// items checks the capability, calls, and yields each response that passes the check. Leaving the loop ends the stream.
func (s streaming[Req, Resp]) items(ctx context.Context, c *Client, req Req, opts []grpc.CallOption) iter.Seq2[*Resp, error] {
	return func(yield func(*Resp, error) bool) {
		if !c.Has(s.capability) {
			yield(nil, unsupported(c.info.GetName(), s.name, s.capability))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := s.call(ctx, req, opts...)
		if err != nil {
			yield(nil, prefixed(c.info.GetName(), err))
			return
		}
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(nil, prefixed(c.info.GetName(), err))
				return
			}
			if err := s.check(resp); err != nil {
				yield(nil, broken(c.info.GetName(), s.name, err))
				return
			}
			if !yield(resp, nil) {
				return
			}
		}
	}
}

// Finalize promotes the release or rolls it back. Call it again until the response says done.
func (c *Client) Finalize(
	ctx context.Context, req *pb.FinalizeRequest, opts ...grpc.CallOption,
) (*pb.FinalizeResponse, error) {
	return rpc[*pb.FinalizeRequest, *pb.FinalizeResponse]{
		name:       "Finalize",
		capability: pb.Capability_CAPABILITY_RELEASE,
		call:       c.driver.Finalize,
		check:      checkFinalize,
	}.do(ctx, c, req, opts)
}

// Plan returns the steps of a release without starting it.
func (c *Client) Plan(ctx context.Context, req *pb.PlanRequest, opts ...grpc.CallOption) (*pb.PlanResponse, error) {
	return rpc[*pb.PlanRequest, *pb.PlanResponse]{
		name:       "Plan",
		capability: pb.Capability_CAPABILITY_PLAN,
		call:       c.driver.Plan,
		check:      checkPlan,
	}.do(ctx, c, req, opts)
}

// Preflight returns findings about a release before it starts.
func (c *Client) Preflight(
	ctx context.Context, req *pb.PreflightRequest, opts ...grpc.CallOption,
) (*pb.PreflightResponse, error) {
	return rpc[*pb.PreflightRequest, *pb.PreflightResponse]{
		name:       "Preflight",
		capability: pb.Capability_CAPABILITY_PREFLIGHT,
		call:       c.driver.Preflight,
		check:      func(r *pb.PreflightResponse) error { return checkFindings(r.GetFindings()) },
	}.do(ctx, c, req, opts)
}

// ListRevisions returns the workload's history, newest first.
func (c *Client) ListRevisions(
	ctx context.Context, req *pb.ListRevisionsRequest, opts ...grpc.CallOption,
) (*pb.ListRevisionsResponse, error) {
	return rpc[*pb.ListRevisionsRequest, *pb.ListRevisionsResponse]{
		name:       "ListRevisions",
		capability: pb.Capability_CAPABILITY_LIST_REVISIONS,
		call:       c.driver.ListRevisions,
		check:      checkRevisions,
	}.do(ctx, c, req, opts)
}

// Undo restores the template of an older revision.
func (c *Client) Undo(ctx context.Context, req *pb.UndoRequest, opts ...grpc.CallOption) (*pb.UndoResponse, error) {
	return rpc[*pb.UndoRequest, *pb.UndoResponse]{
		name:       "Undo",
		capability: pb.Capability_CAPABILITY_UNDO,
		call:       c.driver.Undo,
		check:      checkUndo,
	}.do(ctx, c, req, opts)
}
