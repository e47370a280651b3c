// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/words"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var noon = time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)

func threeBatches() machine {
	return machine{batches: []string{"25%", "50%", "100%"}}
}

// routedAt is a context of a release of 4 groups, as many of them planned as the batch says, with a weight in the routes. A negative batch is none.
func routedAt(state pb.State, batch, weight int32, revision string) *pb.BatchContext {
	c := &pb.BatchContext{
		State: state, Reason: "R", Message: "m", ReleaseId: "r1", UpdateRevision: revision, TemplateRevision: revision,
		BatchPlan: []*pb.Batch{{Target: "25%", Groups: 1}, {Target: "50%", Groups: 2}, {Target: "100%", Groups: 4}},
		Replicas:  4, Planned: []int32{0, 1, 2, 4}[batch+1], TrafficWeight: weight, TrafficBasis: pb.TrafficBasis_TRAFFIC_BASIS_ROUTED,
	}
	if batch >= 0 {
		c.CurrentBatch = proto.Int32(batch)
	}
	return c
}

// TestScenarios runs testdata/*.txt. Each test is a machine for three batches, in the words of parseMachine, and its step after each of the contexts
// that follow, in those of parseContext. The notes of a step are below it.
func TestScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			m := parseMachine(t, d.CmdArgs)
			var told strings.Builder
			for line := range strings.SplitSeq(d.Input, "\n") {
				c, after, measurement := parseContext(t, line)
				if measurement != nil {
					m.record(measured(*measurement), noon.Add(after))
				}
				told.WriteString(tell(m.next(c, noon.Add(after))))
				m.requested = true
			}
			return told.String()
		})
	})
}

func parseMachine(t *testing.T, given []datadriven.CmdArg) machine {
	t.Helper()
	m := threeBatches()
	words.Set(t, given, func(f *flag.FlagSet) {
		f.BoolFunc("gates", "it is the machine of gated, which other words change", func(string) error { m = gated(); return nil })
		f.Func("batches", "it has only the first ones", func(s string) error {
			n := 0
			defer func() { m.batches = m.batches[:n] }()
			return words.Number(&n)(s)
		})
		f.Func("weights", "of each batch", func(s string) error {
			m.Weights = make([]int32, len(m.batches))
			_, err := fmt.Sscanf(s, "%d,%d,%d", &m.Weights[0], &m.Weights[1], &m.Weights[2])
			return err
		})
		f.BoolFunc("headers", "the release has a header route", func(string) error { m.HeaderRoutes = []HeaderRoute{{Name: "a"}}; return nil })
		f.DurationVar(&m.Pause, "pause", 0, "between batches")
		f.BoolVar(&m.NoPromote, "no-promote", false, "it stops before the promotion")
		f.StringVar((*string)(&m.OnFailure), "on-failure", "", "rollback or wait")
		f.StringVar((*string)(&m.OnGateFailure), "on-gate-failure", "", "pause")
		f.BoolVar(&m.routed, "routed", m.routed, "its batches have weights")
		f.BoolVar(&m.headersSet, "headers-set", false, "the header routes were requested")
		f.BoolVar(&m.requested, "requested", m.requested, "the batch at the cursor was requested")
		f.Func("cursor", "the batch to reach", words.Number(&m.cursor))
		f.StringVar(&m.revision, "revision", "", "of the cursor")
		f.Func("intent", "the end that was chosen", words.Enum(&m.intent, "FINALIZE_INTENT_", pb.FinalizeIntent_value))
		f.BoolVar(&m.endOnly, "end-only", false, "it requests no batch")
		f.BoolVar(&m.rollbackTried, "rollback-tried", false, "the rollback of a promotion was requested")
	})
	return m
}

// parseContext returns a context, of revision b by default, when it comes, and what the gate has measured before.
func parseContext(t *testing.T, line string) (c *pb.BatchContext, after time.Duration, measurement *float64) {
	t.Helper()
	batch, weight, planned, revision, basis := int32(-1), int32(0), int32(-1), "b", pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
	ending := pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED
	style := pb.Style_STYLE_CANARY
	state := words.Line(t, line, func(f *flag.FlagSet) {
		f.Func("style", "of the release", words.Enum(&style, "STYLE_", pb.Style_value))
		f.Func("ending", "the end that was requested", words.Enum(&ending, "FINALIZE_INTENT_", pb.FinalizeIntent_value))
		f.Func("batch", "that the release is at", words.Number(&batch))
		f.Func("weight", "in the routes", words.Number(&weight))
		f.Func("planned", "groups, if not those of the batch", words.Number(&planned))
		f.Func("basis", "of the weight", words.Enum(&basis, "TRAFFIC_BASIS_", pb.TrafficBasis_value))
		f.StringVar(&revision, "revision", revision, "of the template")
		f.DurationVar(&after, "after", 0, "noon")
		f.Func("measured", "by the gate", func(s string) error { measurement = new(0.0); return words.Number(measurement)(s) })
	})
	c = routedAt(0, batch, weight, revision)
	c.TrafficBasis, c.Intent, c.Style = basis, ending, style
	require.NoError(t, words.Enum(&c.State, "STATE_", pb.State_value)(state))
	if planned >= 0 {
		c.Planned = planned
	}
	return c, after, measurement
}

func tell(s step) string {
	told := [...]string{
		actInitialize: "initialize", actUpgrade: "upgrade", actHeaders: "set headers", actWeight: fmt.Sprintf("set weight %d", s.weight),
		actPause: "pause", actMeasure: "measure", actPromote: "promote", actRollback: "roll back", actStop: fmt.Sprintf("stop: %s", s.outcome),
	}[s.action]
	switch s.action {
	case actUpgrade, actHeaders, actWeight, actPause, actMeasure:
		told += fmt.Sprintf(", batch %d", s.batch)
	default:
	}
	if !s.until.IsZero() {
		told += fmt.Sprintf(", until %s", s.until.Sub(noon))
	}
	for _, n := range s.notes {
		told += fmt.Sprintf("\n  %s: %s", n.Kind, n.Message)
	}
	return told + "\n"
}

func TestShare(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ part, whole, want int32 }{
		{1, 4, 25}, {1, 3, 34}, {2, 3, 67}, {3, 3, 100}, {1, 1000, 1}, {5, 4, 100}, {1 << 30, 1<<31 - 1, 51},
	} {
		assert.Equal(t, tc.want, percentOf(tc.part, tc.whole), "share(%d, %d)", tc.part, tc.whole)
	}
}
