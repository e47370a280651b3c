// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// recorder writes down what happens in the world.
type recorder struct {
	in     Input
	world  *world
	steps  []*pb.PlanStep
	frames []*pb.PlanFrame
	// began, waves and peak are of the step at work, the first two as it began; weight is the share as the planner has it.
	began      time.Duration
	waves      int
	peak       corev1.ResourceList
	weight     int32
	continuous time.Duration
	blockers   []*pb.Warning
}

func newRecorder(in Input, w *world) *recorder { return &recorder{in: in, world: w} }

// begin begins a step.
func (t *recorder) begin(name string, continuous time.Duration) {
	t.end()
	n := int32(t.in.Replicas) //nolint:gosec // a number of groups, from an int32
	t.steps = append(t.steps, &pb.PlanStep{Name: name, MinAvailableGroups: n, MaxGroups: n})
	t.began, t.waves, t.peak = t.world.now, t.world.waves, corev1.ResourceList{}
	t.continuous += continuous
}

// end completes the step that is at work.
func (t *recorder) end() {
	if len(t.steps) == 0 {
		return
	}
	s := t.steps[len(t.steps)-1]
	n := float64(max(t.in.Replicas, 1))
	s.Waves = int32(t.world.waves - t.waves)                      //nolint:gosec // few
	s.ExtraGroups = max(s.GetMaxGroups()-int32(t.in.Replicas), 0) //nolint:gosec // a number of groups, from an int32
	s.ExtraPods = s.GetExtraGroups() * int32(t.in.Size())         //nolint:gosec // from an int32
	s.MinCapacity, s.MaxCapacity = float64(s.GetMinAvailableGroups())/n, float64(s.GetMaxGroups())/n
	if t.in.Replicas == 0 {
		s.MinCapacity, s.MaxCapacity = 1, 1
	}
	for name, q := range t.peak {
		if s.ExtraResources == nil {
			s.ExtraResources = map[string]string{}
		}
		s.ExtraResources[string(name)] = q.String()
	}
	if t.in.Startup > 0 {
		s.Estimate = durationpb.New(t.world.now - t.began)
	}
}

// decided hears of each decision of the planner.
func (t *recorder) decided(d plan.Decision) {
	t.weight = int32(d.Progress.Weight) //nolint:gosec // 0 to 100
	if n := len(t.frames); n > 0 {
		t.frames[n-1].TrafficWeight = t.weight
		t.steps[len(t.steps)-1].TrafficWeight = t.weight
	}
	known := func(w *pb.Warning) bool { return w.GetCode() == d.Reason }
	if d.State == pb.State_STATE_FAILED && !slices.ContainsFunc(t.blockers, known) {
		t.blockers = append(t.blockers, &pb.Warning{Code: d.Reason, Message: t.steps[len(t.steps)-1].GetName() + ": " + d.Message})
	}
}

// note writes down how the groups are.
func (t *recorder) note() {
	f := &pb.PlanFrame{
		At: durationpb.New(t.world.now), TrafficWeight: t.weight,
		Partition: int32(t.world.stable.Partition()), LeaderReplicas: int32(t.world.stable.LeaderReplicas()), //nolint:gosec // numbers of groups
	}
	roles := []pb.GroupRole{pb.GroupRole_GROUP_ROLE_STABLE, pb.GroupRole_GROUP_ROLE_CANARY}
	for i, s := range t.world.sets() {
		for _, index := range slices.Sorted(maps.Keys(s.Groups)) {
			g := s.Groups[index]
			f.Groups = append(f.Groups, group(roles[i], index, g.Revision == newRevision, g.Ready))
		}
	}
	t.add(f)
}

func group(role pb.GroupRole, index int, updated, ready bool) *pb.PlanGroup {
	return &pb.PlanGroup{Role: role, Index: int32(index), Updated: updated, Ready: ready} //nolint:gosec // a group's index
}

// stage writes down a stage of LWS's own rolling update.
func (t *recorder) stage(s native.Stage) {
	t.world.now = s.At
	f := &pb.PlanFrame{At: durationpb.New(s.At), Partition: int32(s.Partition), LeaderReplicas: int32(s.Replicas)} //nolint:gosec // numbers of groups
	updated := 0
	for i, state := range s.Groups {
		switch state {
		case native.Old:
			f.Groups = append(f.Groups, group(pb.GroupRole_GROUP_ROLE_STABLE, i, false, true))
		case native.Updating, native.Updated:
			f.Groups = append(f.Groups, group(pb.GroupRole_GROUP_ROLE_STABLE, i, true, state == native.Updated))
		case native.Absent:
		}
		if state == native.Updated {
			updated++
		}
	}
	if s.Ready > 0 {
		f.TrafficWeight = int32((200*updated + s.Ready) / (2 * s.Ready)) //nolint:gosec // 0 to 100
	}
	t.weight = f.GetTrafficWeight()
	t.add(f)
}

// add adds a frame to the step at work, unless it is like the one before.
func (t *recorder) add(f *pb.PlanFrame) {
	step := t.steps[len(t.steps)-1]
	f.Step = int32(len(t.steps) - 1) //nolint:gosec // few
	old, updated := 0, 0
	for _, g := range f.GetGroups() {
		if g.GetReady() {
			f.Available++
		}
		if g.GetUpdated() {
			updated++
		} else {
			old++
		}
	}
	step.StableGroups, step.CanaryGroups = int32(old), int32(updated)
	step.ReadyGroups, step.TrafficWeight = f.GetAvailable(), t.weight
	step.MinAvailableGroups = min(step.GetMinAvailableGroups(), f.GetAvailable())
	step.MaxGroups = max(step.GetMaxGroups(), int32(len(f.GetGroups()))) //nolint:gosec // a number of groups
	t.peaks(old, updated)
	if n := len(t.frames); n > 0 && proto.Equal(t.frames[n-1], f) {
		return
	}
	t.frames = append(t.frames, f)
}

// peaks compares what the groups request with what the workload does today.
func (t *recorder) peaks(old, updated int) {
	sum := corev1.ResourceList{}
	for _, n := range []struct {
		capacity.Need
		sign int
	}{
		{capacity.Need{Template: t.in.Old, Groups: old}, 1},
		{capacity.Need{Template: t.in.New, Groups: updated}, 1},
		{capacity.Need{Template: t.in.Old, Groups: t.in.Replicas}, -1},
	} {
		for name, q := range n.Requests() {
			total := sum[name]
			if n.sign > 0 {
				total.Add(q)
			} else {
				total.Sub(q)
			}
			sum[name] = total
		}
	}
	for name, q := range sum {
		if most, known := t.peak[name]; q.Sign() > 0 && (!known || q.Cmp(most) > 0) {
			t.peak[name] = q
		}
	}
}

// response is what was written down.
func (t *recorder) response(style pb.Style) *pb.PlanResponse {
	t.end()
	r := &pb.PlanResponse{
		Steps: t.steps, Blockers: t.blockers, Style: style,
		Replicas: int32(t.in.Replicas), Size: int32(t.in.Size()), //nolint:gosec // from int32s
	}
	if t.in.Startup > 0 {
		r.Startup, r.Estimate = durationpb.New(t.in.Startup), durationpb.New(t.world.now)
		r.ContinuousEstimate = durationpb.New(t.continuous)
	}
	if t.in.Frames {
		r.Frames = t.frames
	}
	return r
}
