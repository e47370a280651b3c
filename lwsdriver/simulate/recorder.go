// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// recorder records what happens in the world, as steps and frames.
type recorder struct {
	in    Input
	world *world
	steps []*pb.PlanStep
	// frames are all of them if they are requested, else the last one. They share equal groups.
	frames []*pb.PlanFrame
	groups map[groupView]*pb.PlanGroup
	// stepStart and peak are of the current step, the first from its beginning; weight is the planner's share.
	stepStart time.Duration
	peak      corev1.ResourceList
	// extraGroups and extraPods are those of all roles on top of the workload at rest, at the peak of the step.
	extraGroups, extraPods int32
	weight                 int32
	blockers               []*pb.Warning
}

// groupView is what a frame shows of a group.
type groupView struct {
	role           pb.GroupRole
	index          int
	updated, ready bool
}

func newRecorder(in Input, w *world) *recorder {
	return &recorder{in: in, world: w, groups: map[groupView]*pb.PlanGroup{}}
}

// group returns the message of a group.
func (r *recorder) group(v groupView) *pb.PlanGroup {
	g := r.groups[v]
	if g == nil {
		g = &pb.PlanGroup{Role: v.role, Index: int32(v.index), Updated: v.updated, Ready: v.ready} //nolint:gosec // a group's index
		r.groups[v] = g
	}
	return g
}

// begin begins a step.
func (r *recorder) begin(name string) {
	r.end()
	n := int32(r.in.Replicas) //nolint:gosec // a number of groups, from an int32
	r.steps = append(r.steps, &pb.PlanStep{Name: name, MinAvailableGroups: n, MaxGroups: n})
	r.extraGroups, r.extraPods = 0, 0
	r.stepStart, r.peak = r.world.now, corev1.ResourceList{}
}

// end completes the current step.
func (r *recorder) end() {
	if len(r.steps) == 0 {
		return
	}
	s := r.steps[len(r.steps)-1]
	n := float64(r.in.Replicas) // a step has groups
	s.ExtraGroups, s.ExtraPods = r.extraGroups, r.extraPods
	s.MinCapacity, s.MaxCapacity = float64(s.GetMinAvailableGroups())/n, float64(s.GetMaxGroups())/n
	for name, q := range r.peak {
		if s.ExtraResources == nil {
			s.ExtraResources = map[string]string{}
		}
		s.ExtraResources[string(name)] = q.String()
	}
	// With an unknown start-up time a minute stands for it, which is no estimate.
	if r.in.Startup > 0 {
		s.Estimate = durationpb.New(r.world.now - r.stepStart)
	}
}

// addDecision records a decision of the planner.
func (r *recorder) addDecision(d plan.Decision) {
	r.weight = int32(d.Progress.Weight) //nolint:gosec // 0 to 100
	// A share changes without a group, so it belongs to the frame before.
	if n := len(r.frames); n > 0 {
		r.frames[n-1].TrafficWeight = r.weight
		r.steps[len(r.steps)-1].TrafficWeight = r.weight
	}
	known := func(w *pb.Warning) bool { return w.GetCode() == d.Reason }
	if d.State == pb.State_STATE_FAILED && !slices.ContainsFunc(r.blockers, known) {
		r.blockers = append(r.blockers, &pb.Warning{Code: d.Reason, Message: r.steps[len(r.steps)-1].GetName() + ": " + r.why(d)})
	}
}

// why returns why a release would fail. The planner's own message names pods and times of the forecast.
func (r *recorder) why(d plan.Decision) string {
	if d.Reason != plan.ReasonDeadline {
		return d.Message
	}
	return fmt.Sprintf("a group takes %s to become ready, and the release fails after %s without a new ready group: set a longer progress deadline",
		r.in.Startup+r.in.Policy.MinReady, cmp.Or(r.in.Policy.ProgressDeadline, record.DefaultProgressDeadline))
}

// addWorldFrame records the groups in the world.
func (r *recorder) addWorldFrame() {
	f := &pb.PlanFrame{
		At: durationpb.New(r.world.now), TrafficWeight: r.weight,
		Partition: int32(r.world.stable.Partition()), LeaderReplicas: int32(r.world.stable.LeaderReplicas()), //nolint:gosec // numbers of groups
	}
	roles := []pb.GroupRole{pb.GroupRole_GROUP_ROLE_STABLE, pb.GroupRole_GROUP_ROLE_CANARY}
	o := r.world.observeGroups()
	for i, w := range append([]plan.Workload{o.Stable}, o.Added...) {
		for _, g := range w.Groups {
			f.Groups = append(f.Groups, r.group(groupView{roles[i], g.Index, g.Revision == newRevision, g.Ready}))
		}
	}
	r.steps[len(r.steps)-1].Roles = r.world.roles()
	r.addFrame(f)
}

// addFrame adds a frame to the current step, unless it shows what the previous one does.
func (r *recorder) addFrame(f *pb.PlanFrame) {
	step := r.steps[len(r.steps)-1]
	f.Step = int32(len(r.steps) - 1) //nolint:gosec // few
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
	step.ReadyGroups, step.TrafficWeight = f.GetAvailable(), r.weight
	step.MinAvailableGroups = min(step.GetMinAvailableGroups(), f.GetAvailable())
	step.MaxGroups = max(step.GetMaxGroups(), int32(len(f.GetGroups()))) //nolint:gosec // a number of groups
	r.updatePeak(old, updated)
	if n := len(r.frames); n > 0 {
		at := f.GetAt()
		// Frames at different times may show the same.
		f.At = r.frames[n-1].GetAt()
		if proto.Equal(r.frames[n-1], f) {
			return
		}
		f.At = at
	}
	// Only the last one is compared with, so the others are not kept.
	if !r.in.Frames {
		r.frames = nil
	}
	r.frames = append(r.frames, f)
}

// updatePeak raises the peak to what the groups request beyond the workload's own requests at rest.
func (r *recorder) updatePeak(old, updated int) {
	now, rest := r.world.needs(old, updated)
	sum := corev1.ResourceList{}
	count := func(needs []capacity.Need, add func(*resource.Quantity, resource.Quantity)) (groups, pods int) {
		for _, n := range needs {
			groups, pods = groups+n.Groups, pods+n.Pods()
			for name, q := range n.Requests() {
				total := sum[name]
				add(&total, q)
				sum[name] = total
			}
		}
		return groups, pods
	}
	groups, pods := count(now, (*resource.Quantity).Add)
	atRest, podsAtRest := count(rest, (*resource.Quantity).Sub)
	r.extraGroups = max(r.extraGroups, int32(groups-atRest)) //nolint:gosec // a number of groups
	r.extraPods = max(r.extraPods, int32(pods-podsAtRest))   //nolint:gosec // a number of pods
	// A smaller template may request less than before; that is no extra.
	for name, q := range sum {
		if most, known := r.peak[name]; q.Sign() > 0 && (!known || q.Cmp(most) > 0) {
			r.peak[name] = q
		}
	}
}

// response returns the recorded forecast.
func (r *recorder) response(style pb.Style) *pb.PlanResponse {
	r.end()
	out := &pb.PlanResponse{
		Steps: r.steps, Blockers: r.blockers, Style: style,
		Replicas: int32(r.in.Replicas), Size: int32(r.in.Size()), //nolint:gosec // from int32s
	}
	if r.in.Startup > 0 {
		out.Startup, out.Estimate = durationpb.New(r.in.Startup), durationpb.New(r.world.now)
	}
	if r.in.Frames {
		out.Frames = r.frames
	}
	return out
}
