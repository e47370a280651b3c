// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"iter"
	"sync"

	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Late is a driver that may not be reached yet. Argo waits for a plugin to start, with all its Rollouts; so the plugin
// starts at once, and until the driver is there its calls answer UNAVAILABLE and are tried again.
type Late struct {
	mu     sync.RWMutex
	driver Driver
	cause  error
}

var _ Driver = (*Late)(nil)

// Set says that the driver is there.
func (l *Late) Set(d Driver) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.driver = d
}

// Failed says why it is not there yet.
func (l *Late) Failed(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = cause
}

// get returns the driver, or the error for now.
func (l *Late) get() (Driver, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case l.driver != nil:
		return l.driver, nil
	case l.cause != nil:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "the driver is not reached: %v", l.cause)
	default:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the driver is not reached yet")
	}
}

// late makes one call of the driver, if it is there.
func late[Req, Resp any](
	ctx context.Context, l *Late, method func(Driver) func(context.Context, Req, ...grpc.CallOption) (Resp, error),
	req Req, opts []grpc.CallOption,
) (Resp, error) {
	d, err := l.get()
	if err != nil {
		var none Resp
		return none, err
	}
	return method(d)(ctx, req, opts...)
}

// Has says what the driver can do; nothing while it is not there.
func (l *Late) Has(c pb.Capability) bool {
	d, err := l.get()
	return err == nil && d.Has(c)
}

// WatchBatchContext is one call of the driver.
func (l *Late) WatchBatchContext(
	ctx context.Context, req *pb.WatchBatchContextRequest, opts ...grpc.CallOption,
) iter.Seq2[*pb.BatchContext, error] {
	d, err := l.get()
	if err != nil {
		return func(yield func(*pb.BatchContext, error) bool) { yield(nil, err) }
	}
	return d.WatchBatchContext(ctx, req, opts...)
}

// Adopt is one call of the driver.
func (l *Late) Adopt(
	ctx context.Context, req *pb.AdoptRequest, opts ...grpc.CallOption,
) (*pb.AdoptResponse, error) {
	type method = func(context.Context, *pb.AdoptRequest, ...grpc.CallOption) (*pb.AdoptResponse, error)
	return late(ctx, l, func(d Driver) method { return d.Adopt }, req, opts)
}

// Disown is one call of the driver.
func (l *Late) Disown(
	ctx context.Context, req *pb.DisownRequest, opts ...grpc.CallOption,
) (*pb.DisownResponse, error) {
	type method = func(context.Context, *pb.DisownRequest, ...grpc.CallOption) (*pb.DisownResponse, error)
	return late(ctx, l, func(d Driver) method { return d.Disown }, req, opts)
}

// Initialize is one call of the driver.
func (l *Late) Initialize(
	ctx context.Context, req *pb.InitializeRequest, opts ...grpc.CallOption,
) (*pb.InitializeResponse, error) {
	type method = func(context.Context, *pb.InitializeRequest, ...grpc.CallOption) (*pb.InitializeResponse, error)
	return late(ctx, l, func(d Driver) method { return d.Initialize }, req, opts)
}

// UpgradeBatch is one call of the driver.
func (l *Late) UpgradeBatch(
	ctx context.Context, req *pb.UpgradeBatchRequest, opts ...grpc.CallOption,
) (*pb.UpgradeBatchResponse, error) {
	type method = func(context.Context, *pb.UpgradeBatchRequest, ...grpc.CallOption) (*pb.UpgradeBatchResponse, error)
	return late(ctx, l, func(d Driver) method { return d.UpgradeBatch }, req, opts)
}

// CalculateBatchContext is one call of the driver.
func (l *Late) CalculateBatchContext(
	ctx context.Context, req *pb.CalculateBatchContextRequest, opts ...grpc.CallOption,
) (*pb.CalculateBatchContextResponse, error) {
	type method = func(context.Context, *pb.CalculateBatchContextRequest, ...grpc.CallOption) (*pb.CalculateBatchContextResponse, error)
	return late(ctx, l, func(d Driver) method { return d.CalculateBatchContext }, req, opts)
}

// Finalize is one call of the driver.
func (l *Late) Finalize(
	ctx context.Context, req *pb.FinalizeRequest, opts ...grpc.CallOption,
) (*pb.FinalizeResponse, error) {
	type method = func(context.Context, *pb.FinalizeRequest, ...grpc.CallOption) (*pb.FinalizeResponse, error)
	return late(ctx, l, func(d Driver) method { return d.Finalize }, req, opts)
}

// Undo is one call of the driver.
func (l *Late) Undo(
	ctx context.Context, req *pb.UndoRequest, opts ...grpc.CallOption,
) (*pb.UndoResponse, error) {
	type method = func(context.Context, *pb.UndoRequest, ...grpc.CallOption) (*pb.UndoResponse, error)
	return late(ctx, l, func(d Driver) method { return d.Undo }, req, opts)
}

// SetWeight is one call of the driver.
func (l *Late) SetWeight(
	ctx context.Context, req *pb.SetWeightRequest, opts ...grpc.CallOption,
) (*pb.SetWeightResponse, error) {
	type method = func(context.Context, *pb.SetWeightRequest, ...grpc.CallOption) (*pb.SetWeightResponse, error)
	return late(ctx, l, func(d Driver) method { return d.SetWeight }, req, opts)
}

// SetHeaderRoute is one call of the driver.
func (l *Late) SetHeaderRoute(
	ctx context.Context, req *pb.SetHeaderRouteRequest, opts ...grpc.CallOption,
) (*pb.SetHeaderRouteResponse, error) {
	type method = func(context.Context, *pb.SetHeaderRouteRequest, ...grpc.CallOption) (*pb.SetHeaderRouteResponse, error)
	return late(ctx, l, func(d Driver) method { return d.SetHeaderRoute }, req, opts)
}

// SetMirror is one call of the driver.
func (l *Late) SetMirror(
	ctx context.Context, req *pb.SetMirrorRequest, opts ...grpc.CallOption,
) (*pb.SetMirrorResponse, error) {
	type method = func(context.Context, *pb.SetMirrorRequest, ...grpc.CallOption) (*pb.SetMirrorResponse, error)
	return late(ctx, l, func(d Driver) method { return d.SetMirror }, req, opts)
}

// VerifyWeight is one call of the driver.
func (l *Late) VerifyWeight(
	ctx context.Context, req *pb.VerifyWeightRequest, opts ...grpc.CallOption,
) (*pb.VerifyWeightResponse, error) {
	type method = func(context.Context, *pb.VerifyWeightRequest, ...grpc.CallOption) (*pb.VerifyWeightResponse, error)
	return late(ctx, l, func(d Driver) method { return d.VerifyWeight }, req, opts)
}
