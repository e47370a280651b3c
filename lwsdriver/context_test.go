// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestDescribeSaysWhatIsWanted(t *testing.T) {
	t.Parallel()
	s := newBed(t, inPhase(t, record.Progressing)).look()
	routed := plan.Decision{Deadline: noon.Add(time.Hour), Progress: plan.Progress{Weight: 10, Routed: true}}
	c := describe(s, routed)
	batches := []*pb.Batch{{Target: "25%", Groups: 1}, {Target: "50%", Groups: 2}, {Target: "100%", Groups: 4}}
	if diff := cmp.Diff(batches, c.GetBatchPlan(), protocmp.Transform()); diff != "" {
		t.Errorf("batches at %d replicas: -want, +got:\n%s", c.GetReplicas(), diff)
	}
	if !c.GetDeadline().AsTime().Equal(noon.Add(time.Hour)) {
		t.Errorf("deadline %v", c.GetDeadline())
	}
	if c.WantedWeight == nil || c.GetWantedWeight() != 0 {
		t.Errorf("a host that asked for nothing wants %v, not 0", c.WantedWeight)
	}
	s.Record.Release.Traffic = &record.Traffic{Weight: 25}
	if c = describe(s, routed); c.GetWantedWeight() != 25 || c.GetTrafficWeight() != 10 {
		t.Errorf("wanted %d, reached %d", c.GetWantedWeight(), c.GetTrafficWeight())
	}
	if c = describe(s, plan.Decision{}); c.WantedWeight != nil || c.Deadline != nil {
		t.Errorf("not routed, and waiting for nothing: wanted %v, deadline %v", c.WantedWeight, c.GetDeadline())
	}
	s.Record.Release.Phase = record.Promoting
	if c = describe(s, routed); c.WantedWeight != nil {
		t.Errorf("from Finalize on the driver decides, and yet %d is wanted", c.GetWantedWeight())
	}
}
