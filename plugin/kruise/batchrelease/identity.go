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
	// RollbackInBatchAnnotation has a rollback counted in batches. It is Kruise's own.
	RollbackInBatchAnnotation = "rollouts.kruise.io/rollback-in-batch"
)

const (
	workloadGroup = "leaderworkerset.x-k8s.io"
	workloadKind  = "LeaderWorkerSet"
	// ownerPrefix begins the owner of releases, as people see it.
	ownerPrefix = "kruise-batchrelease/"
	// idPrefix begins the id of releases.
	idPrefix = "kruise-"
	// maxID is how long an id may be.
	maxID = 63
)

// Supports reports whether a BatchRelease is for a workload that the driver knows. Others are somebody else's.
func Supports(r *v1beta1.BatchRelease) bool {
	ref := r.Spec.WorkloadRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == workloadGroup && ref.Kind == workloadKind && ref.Name != ""
}

// Workload is what the BatchRelease releases.
func Workload(r *v1beta1.BatchRelease) *pb.WorkloadRef {
	return &pb.WorkloadRef{Namespace: r.Namespace, Name: r.Spec.WorkloadRef.Name}
}

// Owner is how the driver shows people who drives the release.
func Owner(r *v1beta1.BatchRelease) string { return ownerPrefix + r.Namespace + "/" + r.Name }

// idOf begins all ids of one BatchRelease. Another object of the same name has another.
func idOf(r *v1beta1.BatchRelease) string {
	return idPrefix + strings.ReplaceAll(string(r.UID), "-", "") + "-"
}

// Began reports whether the last release of a workload is one that this BatchRelease has begun.
func Began(r *v1beta1.BatchRelease, c *pb.BatchContext) bool {
	return strings.HasPrefix(c.GetReleaseId(), idOf(r))
}

// ReleaseID is the id under which a BatchRelease begins to release a revision.
func ReleaseID(r *v1beta1.BatchRelease, revision string) string {
	id := idOf(r) + revision
	return id[:min(len(id), maxID)]
}
