// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin is the SDK for both sides of the contract in proto/lockstep/v1alpha1. It imports no Kubernetes code.
//
// A driver calls [Serve] if [IsPlugin] reports that a host started it. A host calls [Launch] to start a driver's binary,
// or [Dial] to connect to one that runs as a server, and gets a [Client] with one method per RPC. The client reads the
// driver's capabilities once, returns an error for unsupported RPCs without calling the driver, and validates every response.
// [Follow] and [FollowWorkloads] keep a watch open across broken streams and restarts of the driver.
//
// Errors are gRPC status errors: [Reason] and [Retryable] read them, package drivererr builds them, and SPEC.md of the
// contract says what to do about each.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

type (
	workloadDriver = pb.WorkloadDriverClient
	trafficRouter  = pb.TrafficRouterClient
)

// Client is a host's client of a driver. It is safe for concurrent use.
//
// Each method is one RPC of WorkloadDriver or TrafficRouter. Its error keeps the driver's gRPC code and details, and begins with the
// driver's name, unless [DialOptions] leave that out. It is UNIMPLEMENTED, without a call, if the driver does not list the capability, and INTERNAL if the driver's response
// breaks the contract.
type Client struct {
	workloadDriver
	trafficRouter

	peer   checked
	close  func() error
	exited <-chan struct{}
}

// newClient reads the driver's info over conn before ctx ends. end closes the connection.
func newClient(
	ctx context.Context, conn grpc.ClientConnInterface, address string, end func() error, opts ...grpc.CallOption,
) (*Client, error) {
	info, err := pb.NewWorkloadDriverClient(conn).GetDriverInfo(ctx, &pb.GetDriverInfoRequest{}, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to driver at %s: %w", address, err)
	}
	if err := checkResponse(info); err != nil {
		return nil, contractError("driver at "+address, "GetDriverInfo", err)
	}
	return clientOf(func() (peer, error) { return peer{conn, info, info.GetName()}, nil }, end), nil
}

func clientOf(p checked, end func() error) *Client {
	return &Client{
		workloadDriver: pb.NewWorkloadDriverClient(p), trafficRouter: pb.NewTrafficRouterClient(p), peer: p, close: sync.OnceValue(end),
	}
}

// NewPending returns a client whose calls fail with UNAVAILABLE, at once, until connect has returned the client that serves them. It is for
// a host that must not wait for its driver. connect runs in the background. It calls failed with each error, and returns nil to give up.
func NewPending(connect func(failed func(error)) *Client) *Client {
	var state atomic.Pointer[checked]
	set := func(p checked) { state.Store(&p) }
	set(func() (peer, error) {
		return peer{}, status.Error(codes.Unavailable, "the driver is not reached yet")
	})
	go func() {
		c := connect(func(cause error) {
			set(func() (peer, error) {
				return peer{}, status.Errorf(codes.Unavailable, "the driver is not reached: %v", cause)
			})
		})
		if c != nil {
			set(c.peer)
		}
	}()
	return clientOf(func() (peer, error) { return (*state.Load())() }, func() error { return nil })
}

// Close ends the connection, and the process if Launch started it. Calls in flight fail. It can be called again.
func (c *Client) Close() error {
	return c.close()
}

// Exited returns a channel that is closed once the process that Launch started has ended, for any reason. It is nil, and
// so never ready, after Dial.
func (c *Client) Exited() <-chan struct{} { return c.exited }

// Info returns the driver's info of the time when the client connected. GetDriverInfo requests the current info.
func (c *Client) Info() *pb.GetDriverInfoResponse {
	p, _ := c.peer()
	return proto.CloneOf(p.info)
}

// Has reports whether the driver lists the capability.
func (c *Client) Has(capability pb.Capability) bool {
	p, _ := c.peer()
	return slices.Contains(p.info.GetCapabilities(), capability)
}

// WatchBatchContext yields the state of the workload and its release, at once and after each change. It yields at most one
// error, as the last item, and none if the driver closes the stream. Leaving the loop ends the stream. [Follow]
// reconnects.
func (c *Client) WatchBatchContext(
	ctx context.Context, req *pb.WatchBatchContextRequest, opts ...grpc.CallOption,
) iter.Seq2[*pb.BatchContext, error] {
	return func(yield func(*pb.BatchContext, error) bool) {
		for r, err := range receiveAll(ctx, c.workloadDriver.WatchBatchContext, req, opts) {
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
	return receiveAll(ctx, c.workloadDriver.WatchWorkloads, req, opts)
}

// Call makes the unary RPC that a request is for. It returns the state of the workload in the response, nil if the response has none.
func (c *Client) Call(ctx context.Context, request proto.Message) (*pb.BatchContext, error) {
	rpc, ok := unary[request.ProtoReflect().Descriptor().FullName()]
	if !ok {
		return nil, fmt.Errorf("no RPC is for a %T", request)
	}
	response, err := protoregistry.GlobalTypes.FindMessageByName(rpc.Output().FullName())
	if err != nil {
		return nil, fmt.Errorf("find the response of %s: %w", rpc.Name(), err)
	}
	reply := response.New().Interface()
	err = c.peer.Invoke(ctx, fmt.Sprintf("/%s/%s", rpc.Parent().FullName(), rpc.Name()), request, reply)
	if r, ok := reply.(interface{ GetContext() *pb.BatchContext }); ok && err == nil {
		return r.GetContext(), nil
	}
	return nil, err
}

// unary has the unary RPCs by the names of their requests.
var unary = func() map[protoreflect.FullName]protoreflect.MethodDescriptor {
	all := map[protoreflect.FullName]protoreflect.MethodDescriptor{}
	for _, file := range []protoreflect.FileDescriptor{pb.File_lockstep_v1alpha1_driver_proto, pb.File_lockstep_v1alpha1_traffic_proto} {
		rpcs := file.Services().Get(0).Methods()
		for i := range rpcs.Len() {
			if rpc := rpcs.Get(i); !rpc.IsStreamingServer() {
				all[rpc.Input().FullName()] = rpc
			}
		}
	}
	return all
}()

// receiveAll yields each response of a stream. Leaving the loop ends the stream.
func receiveAll[Req, Resp any](
	ctx context.Context, open func(context.Context, Req, ...grpc.CallOption) (grpc.ServerStreamingClient[Resp], error),
	req Req, opts []grpc.CallOption,
) iter.Seq2[*Resp, error] {
	return func(yield func(*Resp, error) bool) {
		// A loop that is left early has to end the stream at the driver, too.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := open(ctx, req, opts...)
		for err == nil {
			var resp *Resp
			if resp, err = stream.Recv(); err == nil && !yield(resp, nil) {
				return
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(nil, err)
		}
	}
}

// peer is a connection to a driver.
type peer struct {
	conn grpc.ClientConnInterface
	info *pb.GetDriverInfoResponse
	// name is what errors begin with. Empty means nothing.
	name string
}

// checked is a connection that refuses RPCs whose capability the driver does not list, and responses that break the contract.
type checked func() (peer, error)

var _ grpc.ClientConnInterface = checked(nil)

// Invoke makes a unary call.
func (p checked) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	d, err := p.to(method)
	if err != nil {
		return err
	}
	return d.judge(method, reply, d.conn.Invoke(ctx, method, args, reply, opts...))
}

// NewStream opens a stream.
func (p checked) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	d, err := p.to(method)
	if err != nil {
		return nil, err
	}
	s, err := d.conn.NewStream(ctx, desc, method, opts...)
	return &checkedStream{s, d, method}, prefixedError(d.name, err)
}

// to returns the driver, if it lists the capability of a method.
func (p checked) to(method string) (peer, error) {
	d, err := p()
	// An RPC of another service, such as health, needs no capability.
	if needs, ok := capabilities[method]; err == nil && ok && !slices.Contains(d.info.GetCapabilities(), needs) {
		err = drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"%s does not serve %s: it does not list %v. Do without it, or use a driver that lists it", d.info.GetName(), path.Base(method), needs)
	}
	return d, err
}

// judge returns the error of a call, or of its response.
func (p peer) judge(method string, reply any, err error) error {
	if err != nil {
		return prefixedError(p.name, err)
	}
	if m, ok := reply.(proto.Message); ok {
		err = checkResponse(m)
	}
	if err != nil {
		return contractError(p.name, path.Base(method), err)
	}
	return nil
}

type checkedStream struct {
	grpc.ClientStream

	peer   peer
	method string
}

// RecvMsg receives a response.
func (s *checkedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if errors.Is(err, io.EOF) {
		return err //nolint:wrapcheck // It marks the end.
	}
	return s.peer.judge(s.method, m, err)
}

// capabilities has the capability of each RPC. A driver that does not list it does not serve the RPC.
var capabilities = map[string]pb.Capability{
	pb.WorkloadDriver_Adopt_FullMethodName:                 pb.Capability_CAPABILITY_ADOPT,
	pb.WorkloadDriver_Disown_FullMethodName:                pb.Capability_CAPABILITY_ADOPT,
	pb.WorkloadDriver_Initialize_FullMethodName:            pb.Capability_CAPABILITY_RELEASE,
	pb.WorkloadDriver_UpgradeBatch_FullMethodName:          pb.Capability_CAPABILITY_RELEASE,
	pb.WorkloadDriver_CalculateBatchContext_FullMethodName: pb.Capability_CAPABILITY_RELEASE,
	pb.WorkloadDriver_Finalize_FullMethodName:              pb.Capability_CAPABILITY_RELEASE,
	pb.WorkloadDriver_WatchBatchContext_FullMethodName:     pb.Capability_CAPABILITY_WATCH,
	pb.WorkloadDriver_WatchWorkloads_FullMethodName:        pb.Capability_CAPABILITY_WATCH_WORKLOADS,
	pb.WorkloadDriver_Plan_FullMethodName:                  pb.Capability_CAPABILITY_PLAN,
	pb.WorkloadDriver_Preflight_FullMethodName:             pb.Capability_CAPABILITY_PREFLIGHT,
	pb.WorkloadDriver_ListRevisions_FullMethodName:         pb.Capability_CAPABILITY_LIST_REVISIONS,
	pb.WorkloadDriver_Undo_FullMethodName:                  pb.Capability_CAPABILITY_UNDO,
	pb.TrafficRouter_SetWeight_FullMethodName:              pb.Capability_CAPABILITY_TRAFFIC_WEIGHT,
	pb.TrafficRouter_VerifyWeight_FullMethodName:           pb.Capability_CAPABILITY_TRAFFIC_WEIGHT,
	pb.TrafficRouter_Reset_FullMethodName:                  pb.Capability_CAPABILITY_TRAFFIC_WEIGHT,
	pb.TrafficRouter_SetHeaderRoute_FullMethodName:         pb.Capability_CAPABILITY_TRAFFIC_HEADER_ROUTE,
	pb.TrafficRouter_SetMirror_FullMethodName:              pb.Capability_CAPABILITY_TRAFFIC_MIRROR,
}

// Reason returns the contract's reason that err carries, UNSPECIFIED if it carries none.
func Reason(err error) pb.ErrorReason {
	return drivererr.Reason(err)
}

// Retryable reports whether the same call may succeed later without intervention: that is true of ABORTED and
// UNAVAILABLE only.
func Retryable(err error) bool {
	return drivererr.Retryable(err)
}

// prefixedError prefixes the message of a status error with the driver's name, if it is not empty, and keeps its code and details.
func prefixedError(name string, err error) error {
	if err == nil || name == "" {
		return err
	}
	s := status.Convert(err).Proto()
	s.Message = fmt.Sprintf("%s: %s", name, s.GetMessage())
	return status.FromProto(s).Err()
}

// contractError returns the error for a response that violates the contract.
func contractError(name, rpc string, cause error) error {
	return prefixedError(name, drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "response to %s breaks the contract: %v", rpc, cause))
}
