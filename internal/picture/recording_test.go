// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var start = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// moment returns a moment of a canary release of 2 groups. Each word is a group: its set, its index, and o, s or n for old,
// starting or new, or - without a pod.
func moment(after time.Duration, id string, state pb.State, batch int32, groups ...string) Moment {
	c := &pb.BatchContext{ReleaseId: id, State: state, Replicas: 2, Size: 4, Batches: 2, Target: "50%", UpdateRevision: "new1", StableRevision: "old1"}
	if batch >= 0 {
		c.CurrentBatch = ptr.To(batch)
	}
	for _, word := range groups {
		g := &pb.Group{Role: pb.GroupRole_GROUP_ROLE_STABLE, Index: int32(word[1] - '0'), Revision: "old1"}
		if word[0] == 'c' {
			g.Role = pb.GroupRole_GROUP_ROLE_CANARY
		}
		switch word[2] {
		case 'o':
			g.Ready = true
		case 's':
			g.Revision, g.Updated = "new1", true
		case 'n':
			g.Revision, g.Updated, g.Ready = "new1", true, true
		default:
			g.Revision = ""
		}
		c.Groups = append(c.Groups, g)
	}
	return Moment{At: start.Add(after), Context: c}
}

func TestRecording(t *testing.T) {
	svg, err := Recording("vllm", []Moment{
		moment(-time.Hour, "r1", pb.State_STATE_COMPLETED, 1, "w0o", "w1o"),
		{At: start.Add(-time.Minute)}, // a document without a context
		moment(0, "r2", pb.State_STATE_HOLDING, -1, "w0o", "w1o"),
		moment(0, "r2", pb.State_STATE_UPGRADING, 0, "w0o", "w1o", "c0-"),
		moment(time.Minute, "r2", pb.State_STATE_UPGRADING, 0, "w0o", "w1o", "c0s"),
		moment(5*time.Minute, "r2", pb.State_STATE_READY, 0, "w0o", "w1o", "c0n"),
		moment(4*time.Minute, "r2", pb.State_STATE_PROMOTING, 0, "w0o", "w1s", "c0n"), // the clock was set back
		moment(10*time.Minute, "r2", pb.State_STATE_COMPLETED, 0, "w0n", "w1n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	all := parse(t, svg)
	if o, s, n := bars(t, all, "old"), bars(t, all, "starting"), bars(t, all, "new"); len(o) != 2 || len(s) != 2 || len(n) != 3 {
		t.Errorf("%d bars old, %d not ready, %d new", len(o), len(s), len(n))
	} else if s[0] != n[2] {
		t.Errorf("the second group was not ready for as long as the canary group was ready, but their bars are %g and %g", s[0], n[2])
	}
	if !strings.Contains(string(svg), ">new of ready groups<") {
		t.Error("the share of a release without routes is not called one of groups")
	}
	for _, words := range []string{
		"2 groups of 4 pods · 2026-01-02 12:00:00 UTC · 10m in all · promoted to new1", ">not ready<", "<title>batch 1 of 2 (50%)</title>", "<title>promote</title>",
	} {
		if !strings.Contains(string(svg), words) {
			t.Errorf("the picture lacks %q", words)
		}
	}
}

func TestRecordingOfGates(t *testing.T) {
	measured := func(m Moment, all ...Measurement) Moment {
		m.Measured = all
		return m
	}
	const ttft = "time-to-first-token"
	moments := []Moment{
		measured(moment(-time.Hour, "r1", pb.State_STATE_READY, 0, "w0o"), Measurement{"older", true, "of an older release"}),
		moment(0, "r2", pb.State_STATE_UPGRADING, 0, "w0o", "c0s"),
		measured(moment(time.Minute, "r2", pb.State_STATE_READY, 0, "w0o", "c0n"), Measurement{"errors", true, "errors 0"}, Measurement{ttft, true, "1.1"}),
		measured(moment(2*time.Minute, "r2", pb.State_STATE_READY, 0, "w0o", "c0n"), Measurement{"errors", false, "errors <0.5>"}),
		moment(3*time.Minute, "r2", pb.State_STATE_ROLLED_BACK, 0, "w0o"),
	}
	svg, err := Recording("vllm", moments)
	if err != nil {
		t.Fatal(err)
	}
	parse(t, svg)
	text := string(svg)
	if passed, failed := strings.Count(text, `<circle class="new"`), strings.Count(text, `<circle class="failed"`); passed != 2 || failed != 1 {
		t.Errorf("%d measurements passed, %d failed", passed, failed)
	}
	for _, words := range []string{">errors<title>gate errors</title>", ">time-to-first…<title>gate time-to-first-token</title>", "<title>errors &lt;0.5&gt;</title>"} {
		if !strings.Contains(text, words) {
			t.Errorf("the picture lacks %q", words)
		}
	}
	moments[2].Context.TrafficBasis = pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
	if routed, err := Recording("vllm", moments); err != nil || !strings.Contains(string(routed), ">requests to new<") {
		t.Errorf("the share of a release with routes is not called one of requests: %v", err)
	}
	if strings.Contains(text, "older") {
		t.Error("the picture has a gate of another release")
	}
}

func TestRecordingNames(t *testing.T) {
	var got []string
	for _, m := range []Moment{
		moment(0, "r", pb.State_STATE_PREPARING, -1), moment(0, "r", pb.State_STATE_VERIFYING, 1), moment(0, "r", pb.State_STATE_FAILED, 1),
		moment(0, "r", pb.State_STATE_ROLLING_BACK, 1), moment(0, "r", pb.State_STATE_ROLLED_BACK, 1), moment(0, "r", pb.State_STATE_PROMOTING, 1),
	} {
		got = append(got, stepName(m.Context)+"/"+outcome(m.Context))
	}
	want := []string{
		"to 50%/not finished when last observed", "batch 2 of 2 (50%)/not finished when last observed", "failed/failed: ", "roll back/not finished when last observed",
		"roll back/rolled back to old1", "promote/not finished when last observed",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRecordingOfNothing(t *testing.T) {
	for _, moments := range [][]Moment{nil, {{At: start}}, {moment(0, "", pb.State_STATE_HOLDING, -1, "w0o")}, {moment(0, "r", pb.State_STATE_HOLDING, -1)}} {
		if _, err := Recording("x", moments); !errors.Is(err, ErrNothingRecorded) {
			t.Errorf("%v: %v", moments, err)
		}
	}
	if _, err := Recording("x", []Moment{moment(0, "r", pb.State_STATE_HOLDING, -1, "w0o")}); err != nil {
		t.Errorf("a single moment: %v", err)
	}
}
