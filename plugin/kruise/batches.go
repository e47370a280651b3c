// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ReleasePlan has the fields that this host reads of a BatchRelease's spec.releasePlan.
type ReleasePlan struct {
	// Batches are the targets of updated groups, by batch.
	Batches []ReleaseBatch `json:"batches"`
	// RolloutID is the label that pods get.
	RolloutID string `json:"rolloutID"`
	// FailureThreshold is Kruise's own. The driver gets it so that it does not fail a batch with which Kruise continues.
	FailureThreshold *intstr.IntOrString `json:"failureThreshold"`
}

// ReleaseBatch is one batch.
type ReleaseBatch struct {
	// CanaryReplicas is a number of groups or a percentage of them.
	CanaryReplicas intstr.IntOrString `json:"canaryReplicas"`
}

// policy returns the driver's policy for a target and a plan. Kruise lowers the partition whatever the plan says, so a plan that the driver
// would reject becomes one batch.
func policy(t *v1alpha1.RolloutTarget, p *ReleasePlan) *pb.ReleasePolicy {
	out := &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"100%"}}
	if s := t.Spec.MinReadySeconds; s > 0 {
		out.MinReady = durationpb.New(time.Duration(s) * time.Second)
	}
	if s := t.Spec.ProgressDeadlineSeconds; s != nil {
		out.ProgressDeadline = durationpb.New(time.Duration(*s) * time.Second)
	}
	if f := p.FailureThreshold; f != nil {
		if _, ok := amount(f); ok {
			out.FailureThreshold = f.String()
		}
	}
	if batches, ok := p.batches(); ok {
		out.Batches = batches
	}
	if p.RolloutID != "" && len(validation.IsValidLabelValue(p.RolloutID)) == 0 {
		out.RolloutId = p.RolloutID
	}
	return out
}

// batches returns the plan's batches, if they never decrease and are all counts or all percentages.
func (p *ReleasePlan) batches() ([]string, bool) {
	var out []string
	last := 0
	for _, b := range p.Batches {
		groups := b.CanaryReplicas
		n, ok := amount(&groups)
		if !ok || n < last || groups.Type != p.Batches[0].CanaryReplicas.Type {
			return nil, false
		}
		last = n
		out = append(out, groups.String())
	}
	return out, len(out) > 0
}

// amount returns a count, or the number of a percentage, if the driver accepts it.
func amount(q *intstr.IntOrString) (int, bool) {
	if q.Type == intstr.Int {
		return q.IntValue(), q.IntVal >= 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(q, 100, true)
	return n, err == nil && n <= 100 && len(validation.IsValidPercent(q.StrVal)) == 0
}
