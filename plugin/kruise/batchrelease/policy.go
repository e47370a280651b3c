// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/openkruise/rollouts/api/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Policy returns the driver's policy for a release plan of a workload with that many groups. The error says what is wrong with the
// plan.
func Policy(plan *v1beta1.ReleasePlan, replicas int32) (*pb.ReleasePolicy, error) {
	style, err := Style(plan)
	if err != nil {
		return nil, err
	}
	batches, err := Batches(plan, replicas)
	if err != nil {
		return nil, err
	}
	p := &pb.ReleasePolicy{Style: style, Batches: batches, RolloutId: plan.RolloutID}
	if f := plan.FailureThreshold; f != nil {
		if _, err := Scaled(*f, 100); err != nil {
			return nil, fmt.Errorf("failureThreshold: %w", err)
		}
		p.FailureThreshold = f.String()
	}
	if text := validation.IsValidLabelValue(plan.RolloutID); len(text) > 0 {
		return nil, fmt.Errorf("rolloutID %q is a label's value: %s", plan.RolloutID, strings.Join(text, ", "))
	}
	if m := plan.PatchPodTemplateMetadata; m != nil {
		if style == pb.Style_STYLE_PARTITION {
			return nil, errors.New("patchPodTemplateMetadata: groups that are replaced in place have the workload's own template: " +
				"remove it, or use rollingStyle Canary or BlueGreen")
		}
		p.CanaryLeaderMetadata = &pb.PodMetadata{Labels: m.Labels, Annotations: m.Annotations}
	}
	switch plan.FinalizingPolicy {
	case "", v1beta1.WaitResumeFinalizingPolicyType, v1beta1.ImmediateFinalizingPolicyType:
	default:
		return nil, fmt.Errorf("finalizingPolicy %q is unknown: use %s or %s",
			plan.FinalizingPolicy, v1beta1.WaitResumeFinalizingPolicyType, v1beta1.ImmediateFinalizingPolicyType)
	}
	if p := plan.BatchPartition; p != nil && *p < 0 {
		return nil, fmt.Errorf("batchPartition %d is negative: batches count from 0", *p)
	}
	return p, nil
}

// Style returns the driver's style for a plan, by Kruise's rules: without rollingStyle it is Partition, or Canary with
// enableExtraWorkloadForCanary.
func Style(plan *v1beta1.ReleasePlan) (pb.Style, error) {
	switch plan.RollingStyle {
	case v1beta1.CanaryRollingStyle:
		return pb.Style_STYLE_CANARY, nil
	case v1beta1.BlueGreenRollingStyle:
		return pb.Style_STYLE_BLUE_GREEN, nil
	case v1beta1.PartitionRollingStyle:
		return pb.Style_STYLE_PARTITION, nil
	case "":
		if plan.EnableExtraWorkloadForCanary {
			return pb.Style_STYLE_CANARY, nil
		}
		return pb.Style_STYLE_PARTITION, nil
	default:
		return pb.Style_STYLE_UNSPECIFIED, fmt.Errorf("rollingStyle %q is unknown: use %s, %s or %s",
			plan.RollingStyle, v1beta1.CanaryRollingStyle, v1beta1.BlueGreenRollingStyle, v1beta1.PartitionRollingStyle)
	}
}

// Batches returns the plan's batches as the driver accepts them: all counts or all percentages. Kruise allows both in one plan, which
// are converted to counts.
func Batches(plan *v1beta1.ReleasePlan, replicas int32) ([]string, error) {
	if len(plan.Batches) == 0 {
		return nil, errors.New("batches: is empty; set at least one count or percentage of groups")
	}
	mixed := slices.ContainsFunc(plan.Batches, func(b v1beta1.ReleaseBatch) bool {
		return b.CanaryReplicas.Type != plan.Batches[0].CanaryReplicas.Type
	})
	out := make([]string, 0, len(plan.Batches))
	last := 0
	for i, b := range plan.Batches {
		of := int32(100)
		if mixed {
			of = replicas
		}
		n, err := Scaled(b.CanaryReplicas, of)
		if err != nil {
			return nil, fmt.Errorf("batches[%d]: %w", i, err)
		}
		if mixed {
			n = max(n, last) // Which one is more depends on the number of groups.
		}
		if n < last {
			return nil, fmt.Errorf("batches[%d]: %s is less than the batch before it: batches never decrease", i, b.CanaryReplicas.String())
		}
		last = n
		if mixed {
			out = append(out, fmt.Sprint(n))
		} else {
			out = append(out, b.CanaryReplicas.String())
		}
	}
	return out, nil
}

// Scaled returns a count, or a percentage of a total, rounded up.
func Scaled(q intstr.IntOrString, total int32) (int, error) {
	if q.Type == intstr.Int {
		if q.IntVal < 0 {
			return 0, fmt.Errorf("%d is negative", q.IntVal)
		}
		return int(q.IntVal), nil
	}
	percent, err := intstr.GetScaledValueFromIntOrPercent(&q, 100, true)
	// The parser of Kubernetes also takes a sign.
	if digits, ok := strings.CutSuffix(q.StrVal, "%"); err != nil || !ok || strings.Trim(digits, "0123456789") != "" {
		return 0, fmt.Errorf("%q is neither a count such as 3 nor a percentage such as 25%%", q.StrVal)
	}
	if percent > 100 {
		return 0, fmt.Errorf("%s is more than 100%%", q.StrVal)
	}
	return (percent*int(total) + 99) / 100, nil
}

// plannedGroups returns the target of a batch, as a number of groups.
func plannedGroups(b v1beta1.ReleaseBatch, replicas int32) int32 {
	n, err := Scaled(b.CanaryReplicas, replicas)
	if err != nil {
		return 0 // check has rejected it.
	}
	return int32(min(n, int(replicas))) //nolint:gosec // It is between 0 and replicas.
}

// Finalizer keeps a BatchRelease until its release has ended. It is Kruise's own.
const Finalizer = "rollouts.kruise.io/batch-release-finalizer"

const (
	// ownerPrefix begins the owner of releases.
	ownerPrefix = "kruise-batchrelease/"
	// idPrefix begins the id of releases.
	idPrefix = "kruise-"
	// maxID is the longest id that the driver accepts.
	maxID = 63
)

// groups are the groups of the API of the kinds of workloads that the driver supports.
var groups = map[string]string{
	plugin.KindLeaderWorkerSet: "leaderworkerset.x-k8s.io", plugin.KindDisaggregatedSet: "disaggregatedset.x-k8s.io",
}

// Supports reports whether a BatchRelease is for a kind of workload that the driver supports.
func Supports(r *v1beta1.BatchRelease) bool {
	ref := r.Spec.WorkloadRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group != "" && gv.Group == groups[ref.Kind] && ref.Name != ""
}

// Workload returns the workload of a BatchRelease.
func Workload(r *v1beta1.BatchRelease) *pb.WorkloadRef {
	return &pb.WorkloadRef{Namespace: r.Namespace, Name: r.Spec.WorkloadRef.Name, Kind: r.Spec.WorkloadRef.Kind}
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
