// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// MaxGroups is how many groups a forecast may have: each is an object of the world, and takes part in each of its changes.
const MaxGroups = 500

// Input is everything that a forecast depends on.
type Input struct {
	// Replicas is the number of groups.
	Replicas int
	// Rolling is the user's own rolling update configuration.
	Rolling lws.RollingUpdateConfiguration
	// Old and New are the templates of the groups before and after the release.
	Old, New lws.LeaderWorkerTemplate
	// Roles are those of a DisaggregatedSet, whose entry role is the first, and has the replicas, in all slices, and templates above. Slices is
	// how often it has all roles. A LeaderWorkerSet has none.
	Roles  []Role
	Slices int
	// Policy is the policy of the release.
	Policy record.Policy
	// Startup is how long a group takes from its creation until it is ready. Zero means unknown.
	Startup time.Duration
	// StatefulSetMaxUnavailable: the cluster has the feature gate MaxUnavailableStatefulSet.
	StatefulSetMaxUnavailable bool
	// Rollback: the release is rolled back after its last batch, instead of promoted.
	Rollback bool
	// Frames: the response includes frames.
	Frames bool
	// Ended returns why nothing waits for the forecast any more, nil while something does. Nil means that it is computed to its end.
	Ended func() error
}

// Size is the number of pods of a group.
func (in Input) Size() int { return int(ptr.Deref(in.New.Size, 1)) }

// startup returns the start-up time of the world.
func (in Input) startup() time.Duration {
	return cmp.Or(in.Startup, time.Minute)
}

// maxWrites is above the writes of any step, and above its changes: each group may become ready, and have been ready for long
// enough, at a time of its own. A step with more does not end.
const maxWrites = 4 * MaxGroups

// Release forecasts a release by the policy. An error is that of Ended, or means that the planner does not complete the release, and is a defect of
// the forecast or of the planner.
func Release(in Input) (*pb.PlanResponse, error) {
	w := newWorld(in)
	r := newRecorder(in, w)
	if in.Replicas == 0 {
		return r.response(in.Policy.Style), nil // nothing to release
	}
	w.changed = r.addWorldFrame
	for i, batch := range in.Policy.Batches {
		r.begin(fmt.Sprintf("batch %d of %d (%s)", i+1, len(in.Policy.Batches), batch))
		if err := w.runBatch(r, i); err != nil {
			return nil, fmt.Errorf("forecast batch %d: %w", i+1, err)
		}
	}
	name, end, intent := "promote", pb.State_STATE_COMPLETED, plan.Intent(plan.Promote{ReleaseID: releaseID})
	if in.Rollback {
		name, end, intent = "roll back", pb.State_STATE_ROLLED_BACK, plan.RollBack{ReleaseID: releaseID}
	}
	r.begin(name)
	if err := w.request(intent); err != nil {
		return nil, fmt.Errorf("forecast: %w", err)
	}
	if err := w.until(r, end); err != nil {
		return nil, fmt.Errorf("forecast: %s: %w", name, err)
	}
	return r.response(in.Policy.Style), nil
}

// runBatch is what a host does for one batch.
func (w *world) runBatch(r *recorder, batch int) error {
	if batch == 0 {
		if _, err := w.drive(r); err != nil { // what Initialize does
			return err
		}
	}
	planned := w.policy.Batches[batch].Up(w.in.Replicas)
	if err := w.request(plan.SetTarget{ReleaseID: releaseID, Batch: &batch}); err != nil {
		return err
	}
	if err := w.until(r, pb.State_STATE_READY); err != nil || w.policy.Traffic == nil {
		return err
	}
	weight := 0
	// Blue-green switches all requests at once, so no share before the second set is complete.
	if planned == w.in.Replicas || w.policy.Style != pb.Style_STYLE_BLUE_GREEN {
		weight = min((100*planned+w.in.Replicas-1)/w.in.Replicas, 100)
	}
	if err := w.request(plan.Route{ReleaseID: releaseID, Weight: &weight}); err != nil {
		return err
	}
	return w.until(r, pb.State_STATE_READY)
}

// request is one RPC of the host.
func (w *world) request(i plan.Intent) error {
	d, err := plan.Decide(w.observe(), i)
	if err != nil || d.Action == nil {
		return err
	}
	return w.apply(d.Action)
}

// drive decides and applies until there is nothing to write.
func (w *world) drive(r *recorder) (plan.Decision, error) {
	for range maxWrites {
		if w.in.Ended != nil {
			if err := w.in.Ended(); err != nil {
				return plan.Decision{}, err
			}
		}
		d, err := plan.Decide(w.observe(), nil)
		if err != nil {
			return d, err
		}
		r.addDecision(d)
		// A driver would wait for another observation. Here nothing else would change it.
		if d.Reason == plan.ReasonInvariantViolation {
			return d, fmt.Errorf("%s", d.Message)
		}
		if d.Action == nil {
			return d, nil
		}
		if err := w.apply(d.Action); err != nil {
			return d, err
		}
	}
	return plan.Decision{}, fmt.Errorf("no end after %d writes", maxWrites)
}

// until lets the driver work and time pass until the release is in a state.
func (w *world) until(r *recorder, state pb.State) error {
	var d plan.Decision
	for range maxWrites {
		var err error
		if d, err = w.drive(r); err != nil {
			return err
		}
		if d.State == state {
			return nil
		}
		if !w.advance(d.Recheck) {
			return fmt.Errorf("no progress in state %s (%s): %s", d.State, d.Reason, d.Message)
		}
	}
	return fmt.Errorf("it is in state %s (%s) after %d changes, not in %s: %s", d.State, d.Reason, maxWrites, state, d.Message)
}
