// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Moment is an observation of a release.
type Moment struct {
	At      time.Time
	Context *pb.BatchContext
}

// ErrNothingRecorded means that no moment has a release with groups.
var ErrNothingRecorded = errors.New("no release with groups is recorded")

// Recording draws the release of the last moment, as it was observed: a group keeps its state until the first moment with
// another one. Moments of other releases are left out.
func Recording(title string, moments []Moment) ([]byte, error) {
	last := lastRelease(moments)
	if last == nil {
		return nil, ErrNothingRecorded
	}
	r, begin, at := &pb.PlanResponse{Replicas: last.GetReplicas(), Size: last.GetSize(), Style: last.GetStyle()}, time.Time{}, time.Duration(0)
	for _, m := range moments {
		c := m.Context
		if c.GetReleaseId() != last.GetReleaseId() || len(c.GetGroups()) == 0 {
			continue
		}
		if begin.IsZero() {
			begin = m.At
		}
		at = max(at, m.At.Sub(begin)) // the clock may have been set back
		if name := stepName(c); len(r.Steps) == 0 || r.Steps[len(r.Steps)-1].Name != name {
			r.Steps = append(r.Steps, &pb.PlanStep{Name: name})
		}
		r.Frames = append(r.Frames, frame(c, at, len(r.Steps)-1))
	}
	r.Estimate = durationpb.New(at)
	about := fmt.Sprintf(" · %s · %s in all · %s", begin.UTC().Format("2006-01-02 15:04:05 MST"), short(at), outcome(last))
	return (&canvas{r: r, about: about, unready: "not ready"}).draw(title), nil
}

// lastRelease returns the last context of a release with groups, or nil.
func lastRelease(moments []Moment) *pb.BatchContext {
	for i := len(moments) - 1; i >= 0; i-- {
		if c := moments[i].Context; c.GetReleaseId() != "" && len(c.GetGroups()) > 0 {
			return c
		}
	}
	return nil
}

// frame converts a moment. It leaves out groups without a leader.
func frame(c *pb.BatchContext, at time.Duration, step int) *pb.PlanFrame {
	f := &pb.PlanFrame{At: durationpb.New(at), Step: int32(step), TrafficWeight: c.GetTrafficWeight(), Partition: c.GetPartition()} //nolint:gosec // a number of steps
	for _, g := range c.GetGroups() {
		if g.GetRevision() == "" {
			continue
		}
		f.Groups = append(f.Groups, &pb.PlanGroup{Role: g.GetRole(), Index: g.GetIndex(), Updated: g.GetUpdated(), Ready: g.GetReady()})
		if g.GetReady() {
			f.Available++
		}
	}
	return f
}

func stepName(c *pb.BatchContext) string {
	switch c.GetState() {
	case pb.State_STATE_PROMOTING, pb.State_STATE_COMPLETED:
		return "promote"
	case pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK:
		return "roll back"
	case pb.State_STATE_FAILED:
		return "failed"
	default:
		return batchName(c)
	}
}

func batchName(c *pb.BatchContext) string {
	switch {
	case c.CurrentBatch != nil:
		return fmt.Sprintf("batch %d of %d (%s)", c.GetCurrentBatch()+1, c.GetBatches(), c.GetTarget())
	case c.GetTarget() != "":
		return "to " + c.GetTarget()
	default:
		return "prepare"
	}
}

// outcome describes the last state.
func outcome(c *pb.BatchContext) string {
	switch c.GetState() {
	case pb.State_STATE_COMPLETED:
		return "promoted to " + c.GetUpdateRevision()
	case pb.State_STATE_ROLLED_BACK:
		return "rolled back to " + c.GetStableRevision()
	case pb.State_STATE_FAILED:
		return "failed: " + c.GetReason()
	default:
		return "not finished when last observed"
	}
}
