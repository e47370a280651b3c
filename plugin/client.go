// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Client is a host's client of a driver. It is safe for concurrent use.
//
// Each method is one RPC. Its error keeps the driver's gRPC code and details, and begins with the driver's name. It is
// UNIMPLEMENTED, without a call, if the driver does not list the capability, and INTERNAL if the driver's response
// breaks the contract.
type Client struct {
	driver pb.WorkloadDriverClient
	router pb.TrafficRouterClient
	info   *pb.GetDriverInfoResponse
	close  func() error
	exited <-chan struct{}
}

// newClient reads the driver's info over conn before ctx ends. end closes the connection.
func newClient(
	ctx context.Context, conn grpc.ClientConnInterface, address string, end func() error, opts ...grpc.CallOption,
) (*Client, error) {
	c := &Client{
		driver: pb.NewWorkloadDriverClient(conn),
		router: pb.NewTrafficRouterClient(conn),
		close:  sync.OnceValue(end),
	}
	info, err := c.driver.GetDriverInfo(ctx, &pb.GetDriverInfoRequest{}, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to driver at %s: %w", address, err)
	}
	if err := checkInfo(info); err != nil {
		return nil, broken("driver at "+address, "GetDriverInfo", err)
	}
	c.info = info
	return c, nil
}

// Close ends the connection, and the process if Launch started it. Calls in flight fail. It can be called again.
func (c *Client) Close() error {
	return c.close()
}

// Exited returns a channel that is closed once the process that Launch started has ended, for any reason. It is nil, and
// so never ready, after Dial.
func (c *Client) Exited() <-chan struct{} { return c.exited }

// Info returns the driver's info of the time when the client connected.
func (c *Client) Info() *pb.GetDriverInfoResponse {
	return proto.CloneOf(c.info)
}

// Has reports whether the driver lists the capability.
func (c *Client) Has(capability pb.Capability) bool {
	return slices.Contains(c.info.GetCapabilities(), capability)
}

// rpc describes a unary RPC of the client.
type rpc[Req, Resp any] struct {
	name       string
	capability pb.Capability
	call       func(context.Context, Req, ...grpc.CallOption) (Resp, error)
	check      func(Resp) error
}

// do checks the capability, calls, and checks the response.
func (r rpc[Req, Resp]) do(ctx context.Context, c *Client, req Req, opts []grpc.CallOption) (Resp, error) {
	var none Resp
	if r.capability != pb.Capability_CAPABILITY_UNSPECIFIED && !c.Has(r.capability) {
		return none, unsupported(c.info.GetName(), r.name, r.capability)
	}
	resp, err := r.call(ctx, req, opts...)
	if err != nil {
		return none, prefixed(c.info.GetName(), err)
	}
	if err := r.check(resp); err != nil {
		return none, broken(c.info.GetName(), r.name, err)
	}
	return resp, nil
}
