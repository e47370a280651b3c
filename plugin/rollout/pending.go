// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"iter"
	"sync"

	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// pendingDriver is a driver that has perhaps not been reached yet.
type pendingDriver struct {
	mu     sync.RWMutex
	driver Driver // nil: not reached
	cause  error
}

// NewPendingDriver returns a driver whose calls fail with UNAVAILABLE, at once, until connect has returned the driver that
// serves them. Argo waits for a plugin to start before it reconciles any Rollout, so the plugin must not wait for its
// driver. connect runs in the background. It calls failed with each error, and returns nil to give up.
func NewPendingDriver(connect func(failed func(error)) Driver) Driver {
	p := &pendingDriver{}
	set := func(d Driver, cause error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.driver, p.cause = d, cause
	}
	go func() {
		if d := connect(func(err error) { set(nil, err) }); d != nil {
			set(d, nil)
		}
	}()
	return p
}

func (p *pendingDriver) get() (Driver, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	switch {
	case p.driver != nil:
		return p.driver, nil
	case p.cause != nil:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "the driver is not reached: %v", p.cause)
	default:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the driver is not reached yet")
	}
}

func call[Req, Resp any](
	ctx context.Context, p *pendingDriver, rpc func(Driver, context.Context, Req, ...grpc.CallOption) (Resp, error),
	req Req, opts []grpc.CallOption,
) (Resp, error) {
	d, err := p.get()
	if err != nil {
		var none Resp
		return none, err
	}
	return rpc(d, ctx, req, opts...)
}

func (p *pendingDriver) Has(c pb.Capability) bool {
	d, err := p.get()
	return err == nil && d.Has(c)
}

func (p *pendingDriver) WatchBatchContext(
	ctx context.Context, req *pb.WatchBatchContextRequest, opts ...grpc.CallOption,
) iter.Seq2[*pb.BatchContext, error] {
	d, err := p.get()
	if err != nil {
		return func(yield func(*pb.BatchContext, error) bool) { yield(nil, err) }
	}
	return d.WatchBatchContext(ctx, req, opts...)
}

func (p *pendingDriver) Adopt(ctx context.Context, req *pb.AdoptRequest, opts ...grpc.CallOption) (*pb.AdoptResponse, error) {
	return call(ctx, p, Driver.Adopt, req, opts)
}

func (p *pendingDriver) Disown(ctx context.Context, req *pb.DisownRequest, opts ...grpc.CallOption) (*pb.DisownResponse, error) {
	return call(ctx, p, Driver.Disown, req, opts)
}

func (p *pendingDriver) Initialize(ctx context.Context, req *pb.InitializeRequest, opts ...grpc.CallOption) (*pb.InitializeResponse, error) {
	return call(ctx, p, Driver.Initialize, req, opts)
}

func (p *pendingDriver) UpgradeBatch(
	ctx context.Context, req *pb.UpgradeBatchRequest, opts ...grpc.CallOption,
) (*pb.UpgradeBatchResponse, error) {
	return call(ctx, p, Driver.UpgradeBatch, req, opts)
}

func (p *pendingDriver) CalculateBatchContext(
	ctx context.Context, req *pb.CalculateBatchContextRequest, opts ...grpc.CallOption,
) (*pb.CalculateBatchContextResponse, error) {
	return call(ctx, p, Driver.CalculateBatchContext, req, opts)
}

func (p *pendingDriver) Finalize(ctx context.Context, req *pb.FinalizeRequest, opts ...grpc.CallOption) (*pb.FinalizeResponse, error) {
	return call(ctx, p, Driver.Finalize, req, opts)
}

func (p *pendingDriver) Undo(ctx context.Context, req *pb.UndoRequest, opts ...grpc.CallOption) (*pb.UndoResponse, error) {
	return call(ctx, p, Driver.Undo, req, opts)
}

func (p *pendingDriver) SetWeight(ctx context.Context, req *pb.SetWeightRequest, opts ...grpc.CallOption) (*pb.SetWeightResponse, error) {
	return call(ctx, p, Driver.SetWeight, req, opts)
}

func (p *pendingDriver) SetHeaderRoute(
	ctx context.Context, req *pb.SetHeaderRouteRequest, opts ...grpc.CallOption,
) (*pb.SetHeaderRouteResponse, error) {
	return call(ctx, p, Driver.SetHeaderRoute, req, opts)
}

func (p *pendingDriver) SetMirror(ctx context.Context, req *pb.SetMirrorRequest, opts ...grpc.CallOption) (*pb.SetMirrorResponse, error) {
	return call(ctx, p, Driver.SetMirror, req, opts)
}

func (p *pendingDriver) VerifyWeight(
	ctx context.Context, req *pb.VerifyWeightRequest, opts ...grpc.CallOption,
) (*pb.VerifyWeightResponse, error) {
	return call(ctx, p, Driver.VerifyWeight, req, opts)
}
