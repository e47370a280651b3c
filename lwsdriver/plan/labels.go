// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// RolloutMark is what the labels of a pod say of the rollout that updated it. The zero value: nothing.
type RolloutMark struct {
	ID string
	// Batch counts from 1.
	Batch int
}

// LabelGroup labels the next pod of a group whose labels do not say which rollout updated it. Asked for again and again,
// it labels them all.
type LabelGroup struct {
	// Name is the workload, Group the index in it, Revision what its pods are at.
	Name     string
	Group    int
	Revision string
	Mark     RolloutMark
}

func (LabelGroup) action() {}

func (a LabelGroup) String() string {
	return fmt.Sprintf("label group %d of %s: rollout %s, batch %d", a.Group, a.Name, a.Mark.ID, a.Mark.Batch)
}

// ReasonLabeling is said of a batch that is ready but for labels.
const ReasonLabeling = "LabelingPods"

// keepLabels has the updated groups' pods carry the rollout's id and the number of their batch. It comes after everything
// else: nothing waits for a label, but for a batch that would be ready.
func keepLabels(o Observation, d Decision) Decision {
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

// nextLabel is the first group that is to be labelled, nil if all are.
func nextLabel(o Observation) *LabelGroup {
	if o.Policy.RolloutID == "" || o.Stable.Deleting || o.Record == nil || o.Record.Release == nil {
		return nil
	}
	r := o.Record.Release
	switch r.Phase {
	case record.Progressing, record.Promoting, record.Standby, record.Promoted:
	default:
		return nil
	}
	if r.UpdateRevision == "" {
		return nil
	}
	for _, w := range o.Added {
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
			continue // the release was over when it came: a scale-up or a restart at rest is none of it
		}
		// The highest index is updated first.
		if a := o.labelOf(o.Stable, g, r.UpdateRevision, o.Stable.Replicas-1-g.Index); a != nil {
			return a
		}
	}
	return nil
}

// labelOf labels a group that is at the revision and stays; it was, or would be, the position-th to be updated, from 0.
func (o Observation) labelOf(w Workload, g Group, revision string, position int) *LabelGroup {
	if !g.at(revision) || g.Terminating || g.Index >= w.Replicas {
		return nil
	}
	mark := o.mark(g, position)
	if len(g.Marks) == 1 && g.Marks[0] == mark {
		return nil
	}
	return &LabelGroup{Name: w.Name, Group: g.Index, Revision: revision, Mark: mark}
}

// mark is what the pods of a group are to say. A number that one of them has stays, so that scaling in mid-release, which
// changes what percentages mean, relabels nobody; a group that has none gets that of the batch which asks for so many.
func (o Observation) mark(g Group, position int) RolloutMark {
	mark := RolloutMark{ID: o.Policy.RolloutID}
	for _, m := range g.Marks {
		if m.ID == mark.ID && m.Batch > 0 && m.Batch <= len(o.Policy.Batches) && (mark.Batch == 0 || m.Batch < mark.Batch) {
			mark.Batch = m.Batch
		}
	}
	for i := 0; mark.Batch == 0; i++ {
		// Beyond the last batch are groups of an absolute target, and those that only promotion reaches.
		if i >= len(o.Policy.Batches)-1 || o.Policy.Batches[i].Up(o.Stable.Replicas) > position {
			mark.Batch = i + 1
		}
	}
	return mark
}
