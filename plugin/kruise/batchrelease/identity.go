// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"strings"

	"github.com/openkruise/rollouts/api/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// Finalizer keeps a BatchRelease until its release has ended. It is Kruise's own.
	Finalizer = "rollouts.kruise.io/batch-release-finalizer"
	// RollbackInBatchAnnotation requests that a rollback is counted in batches. It is Kruise's own.
	RollbackInBatchAnnotation = "rollouts.kruise.io/rollback-in-batch"
)

const (
	workloadGroup = "leaderworkerset.x-k8s.io"
	workloadKind  = "LeaderWorkerSet"
	// ownerPrefix begins the owner of releases.
	ownerPrefix = "kruise-batchrelease/"
	// idPrefix begins the id of releases.
	idPrefix = "kruise-"
	// maxID is the longest id that the driver accepts.
	maxID = 63
)

// Supports reports whether a BatchRelease is for a kind of workload that the driver supports.
func Supports(r *v1beta1.BatchRelease) bool {
	ref := r.Spec.WorkloadRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == workloadGroup && ref.Kind == workloadKind && ref.Name != ""
}

// Workload returns the workload of a BatchRelease.
func Workload(r *v1beta1.BatchRelease) *pb.WorkloadRef {
	return &pb.WorkloadRef{Namespace: r.Namespace, Name: r.Spec.WorkloadRef.Name}
}

// Owner returns the owner of the BatchRelease's releases, as the driver records it.
func Owner(r *v1beta1.BatchRelease) string { return ownerPrefix + r.Namespace + "/" + r.Name }

// idOf returns the prefix of all ids of one BatchRelease. It is different for another object of the same name.
func idOf(r *v1beta1.BatchRelease) string {
	return idPrefix + strings.ReplaceAll(string(r.UID), "-", "") + "-"
}

// Began reports whether the BatchRelease began the last release of its workload.
func Began(r *v1beta1.BatchRelease, c *pb.BatchContext) bool {
	return strings.HasPrefix(c.GetReleaseId(), idOf(r))
}

// ReleaseID returns the id of the BatchRelease's release of a revision.
func ReleaseID(r *v1beta1.BatchRelease, revision string) string {
	id := idOf(r) + revision
	return id[:min(len(id), maxID)]
}
