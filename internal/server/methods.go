// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// anyone needs no credentials: the method tells nothing of workloads.
	anyone access.Verb = "(none)"
	// anyUser needs credentials and no permission.
	anyUser access.Verb = "(authenticated)"
)

// verbs is what the caller of each method needs. A method without a row is refused.
var verbs = map[string]access.Verb{
	pb.WorkloadDriver_GetDriverInfo_FullMethodName:         anyUser,
	pb.WorkloadDriver_CalculateBatchContext_FullMethodName: access.Get,
	pb.WorkloadDriver_WatchBatchContext_FullMethodName:     access.Get,
	pb.WorkloadDriver_WatchWorkloads_FullMethodName:        access.Get,
	pb.WorkloadDriver_Plan_FullMethodName:                  access.Get,
	pb.WorkloadDriver_Preflight_FullMethodName:             access.Get,
	pb.WorkloadDriver_ListRevisions_FullMethodName:         access.Get,
	pb.TrafficRouter_VerifyWeight_FullMethodName:           access.Get,

	pb.WorkloadDriver_Initialize_FullMethodName:    access.Drive,
	pb.WorkloadDriver_UpgradeBatch_FullMethodName:  access.Drive,
	pb.WorkloadDriver_Finalize_FullMethodName:      access.Drive,
	pb.WorkloadDriver_Undo_FullMethodName:          access.Drive,
	pb.TrafficRouter_SetWeight_FullMethodName:      access.Drive,
	pb.TrafficRouter_SetHeaderRoute_FullMethodName: access.Drive,
	pb.TrafficRouter_SetMirror_FullMethodName:      access.Drive,
	pb.TrafficRouter_Reset_FullMethodName:          access.Drive,

	pb.WorkloadDriver_Adopt_FullMethodName:  access.Adopt,
	pb.WorkloadDriver_Disown_FullMethodName: access.Adopt,

	grpc_health_v1.Health_Check_FullMethodName: anyone,
	grpc_health_v1.Health_List_FullMethodName:  anyone,
	// A watch lasts.
	grpc_health_v1.Health_Watch_FullMethodName: anyUser,
	// Reflection shows the contract, which is public.
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      anyUser,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": anyUser,
}

// namespaceOf returns the namespace that a request is about. Empty means all.
func namespaceOf(request any) string {
	switch r := request.(type) {
	case interface{ GetWorkload() *pb.WorkloadRef }:
		return r.GetWorkload().GetNamespace()
	case *pb.WatchWorkloadsRequest:
		return r.GetNamespace()
	}
	return ""
}
