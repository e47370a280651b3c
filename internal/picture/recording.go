// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Moment is an observation of a release.
type Moment struct {
	At time.Time
	// Context may be nil in a moment with measurements.
	Context *pb.BatchContext
	// Measured are the gates that were measured.
	Measured []Measurement
}

// Measurement is one of a gate.
type Measurement struct {
	Gate   string
	Passed bool
	// Message says the value and its limit.
	Message string
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
	share := "new of ready groups"
	if routedIn(moments, last.GetReleaseId()) {
		share = "requests to new"
	}
	return (&canvas{r: r, about: about, unready: "not ready", share: share, gates: gateRows(moments, last.GetReleaseId(), begin)}).draw(title), nil
}

// routedIn reports whether a release routed requests.
func routedIn(moments []Moment, release string) bool {
	return slices.ContainsFunc(moments, func(m Moment) bool {
		return m.Context.GetReleaseId() == release && m.Context.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
	})
}

// gateRows returns a row for each gate of a release that began at a time, in the order of the first measurements.
func gateRows(moments []Moment, release string, begin time.Time) []gateRow {
	var rows []gateRow
	for _, m := range moments {
		if m.Context.GetReleaseId() != release {
			continue
		}
		for _, taken := range m.Measured {
			i := slices.IndexFunc(rows, func(r gateRow) bool { return r.name == taken.Gate })
			if i < 0 {
				i, rows = len(rows), append(rows, gateRow{name: taken.Gate})
			}
			rows[i].marks = append(rows[i].marks, mark{max(m.At.Sub(begin), 0), taken.Passed, taken.Message})
		}
	}
	return rows
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
