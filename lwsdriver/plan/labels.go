// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// RolloutLabels identifies the rollout and batch that updated a pod, as recorded in the pod's labels. It is zero for a pod
// without these labels.
type RolloutLabels struct {
	ID string
	// Batch counts from 1.
	Batch int
}

// LabelGroup labels the next pods of a group that lack the labels of its rollout. Repeated, it labels all of them.
type LabelGroup struct {
	// Name is the workload, Group the index in it, Revision that of its pods.
	Name     string
	Group    int
	Revision string
	Labels   RolloutLabels
}

func (LabelGroup) action() {}

func (a LabelGroup) String() string {
	return fmt.Sprintf("label group %d of %s: rollout %s, batch %d", a.Group, a.Name, a.Labels.ID, a.Labels.Batch)
}

// ReasonLabeling means that the batch is ready except for the labels of its pods.
const ReasonLabeling = "LabelingPods"

// labelPods labels the pods of updated groups with the rollout's id and the number of their batch. All other writes
// come first; only the readiness of a batch waits for labels.
func labelPods(o Observation, d Decision) Decision {
	a := nextLabel(o)
	if d.Action != nil || a == nil || d.Reason == ReasonStyleNotSupported {
		return d
	}
	d.Action = *a
	if d.State == pb.State_STATE_READY {
		d.State, d.Reason = pb.State_STATE_VERIFYING, ReasonLabeling
		d.Message += ", and their pods are being labelled"
	}
	return d
}

// nextLabel returns the first group whose pods lack labels, or nil.
func nextLabel(o Observation) *LabelGroup {
	r := o.release()
	if o.Policy.RolloutID == "" || o.Stable.Deleting || r == nil {
		return nil
	}
	switch r.Phase {
	case record.Progressing, record.Promoting, record.Standby, record.Promoted:
	default:
		return nil
	}
	for _, w := range o.Added {
		// Pods that are being deleted, or of another template, belong to no batch.
		if w.Deleting || w.Carries != r.UpdateRevision {
			continue
		}
		for _, g := range w.Groups {
			if a := o.labelOf(w, g, w.Revision, g.Index); a != nil {
				return a
			}
		}
	}
	for _, g := range o.Stable.Groups {
		if r.Phase == record.Promoted && (!g.Ready || g.ReadySince.After(r.PhaseAt)) {
			continue // created after the release, by a scale-up or a restart
		}
		// The highest index is updated first.
		if a := o.labelOf(o.Stable, g, r.UpdateRevision, o.Stable.Replicas-1-g.Index); a != nil {
			return a
		}
	}
	return nil
}

// labelOf labels a group that is at the revision and stays. position is its place in the order of updates, from 0.
func (o Observation) labelOf(w Workload, g Group, revision string, position int) *LabelGroup {
	if !g.atRevision(revision) || g.Terminating || g.Index >= w.Replicas {
		return nil
	}
	labels := o.rolloutOf(g, position)
	if len(g.Rollouts) == 1 && g.Rollouts[0] == labels {
		return nil
	}
	return &LabelGroup{Name: w.Name, Group: g.Index, Revision: revision, Labels: labels}
}

// rolloutOf returns the labels of a group's pods. A batch number that one of them has is kept, so that scaling in mid-release,
// which changes the meaning of percentages, relabels no group. Without one, the batch follows from the position.
func (o Observation) rolloutOf(g Group, position int) RolloutLabels {
	labels := RolloutLabels{ID: o.Policy.RolloutID}
	for _, m := range g.Rollouts {
		if m.ID == labels.ID && m.Batch > 0 && m.Batch <= len(o.Policy.Batches) && (labels.Batch == 0 || m.Batch < labels.Batch) {
			labels.Batch = m.Batch
		}
	}
	for i := 0; labels.Batch == 0; i++ {
		last := i >= len(o.Policy.Batches)-1 // it also has the groups of an absolute target, and of the promotion
		if last || o.Policy.Batches[i].Up(o.Stable.Replicas) > position {
			labels.Batch = i + 1
		}
	}
	return labels
}
