// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/internal/tracing"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Tracer is a driver that knows the traces of releases.
type Tracer interface {
	// Trace returns the trace of a release, false if it is not the workload's.
	Trace(workload *pb.WorkloadRef, release string) (tracing.Release, bool)
}

// Traces records each call that drives a release as a span. Calls that read are not recorded: hosts repeat them.
func Traces(driver any) grpc.ServerOption { return grpc.ChainUnaryInterceptor(traces(driver)) }

func traces(driver any) grpc.UnaryServerInterceptor {
	tracer, ok := driver.(Tracer)
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		about, drives := request.(interface {
			GetWorkload() *pb.WorkloadRef
			GetReleaseId() string
		})
		if !ok || !drives || !tracing.On() || verbs[info.FullMethod] != access.Drive {
			return handler(ctx, request)
		}
		began := time.Now()
		response, err := handler(ctx, request)
		// Initialize has made the release.
		if trace, ok := tracer.Trace(about.GetWorkload(), about.GetReleaseId()); ok {
			trace.Record(info.FullMethod[1:], began, err,
				semconv.RPCSystemGRPC, semconv.RPCGRPCStatusCodeKey.Int64(int64(status.Code(err))))
		}
		return response, err
	}
}
