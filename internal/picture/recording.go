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

// Moment is how a release stood when somebody looked.
type Moment struct {
	At      time.Time
	Context *pb.BatchContext
}

// ErrNothingRecorded means that no moment has a release with its groups.
var ErrNothingRecorded = errors.New("no moment of a release is recorded, with its groups")

// Recording draws a release as it was seen: that of the last moment; others are left out. Between two moments nothing is
// made up: what a group was, it is until it was seen to be something else.
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
		at = max(at, m.At.Sub(begin)) // a clock that was put back makes no time
		if name := stepName(c); len(r.Steps) == 0 || r.Steps[len(r.Steps)-1].Name != name {
			r.Steps = append(r.Steps, &pb.PlanStep{Name: name})
		}
		r.Frames = append(r.Frames, frame(c, at, len(r.Steps)-1))
	}
	r.Estimate = durationpb.New(at)
	about := fmt.Sprintf(" · %s · %s in all · %s", begin.UTC().Format("2006-01-02 15:04:05 MST"), short(at), ending(last))
	return (&canvas{r: r, about: about, unready: "not ready"}).draw(title), nil
}

// lastRelease is the newest context of a release with its groups. Nil: there is none.
func lastRelease(moments []Moment) *pb.BatchContext {
	for i := len(moments) - 1; i >= 0; i-- {
		if c := moments[i].Context; c.GetReleaseId() != "" && len(c.GetGroups()) > 0 {
			return c
		}
	}
	return nil
}

// frame is a moment as a plan has it. Groups without a leader do not exist.
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

// stepName is what the release was at.
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

// ending says how it stood last.
func ending(c *pb.BatchContext) string {
	switch c.GetState() {
	case pb.State_STATE_COMPLETED:
		return "promoted to " + c.GetUpdateRevision()
	case pb.State_STATE_ROLLED_BACK:
		return "rolled back to " + c.GetStableRevision()
	case pb.State_STATE_FAILED:
		return "failed: " + c.GetReason()
	default:
		return "not finished when last seen"
	}
}
