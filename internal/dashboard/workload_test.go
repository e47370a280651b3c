// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/stretchr/testify/assert"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var noon = time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)

// upgrading is a canary at its second batch: one of its groups is not ready.
func upgrading() *pb.BatchContext {
	return &pb.BatchContext{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}, ReleaseId: "r1", Style: pb.Style_STYLE_CANARY, State: pb.State_STATE_UPGRADING,
		Replicas: 4, Size: 2, Batches: 3, CurrentBatch: proto.Int32(1), Target: "50%", Planned: 2, Updated: 2, UpdatedReady: 1, StableReady: 2, Total: 5,
		StableRevision: "aaaa", UpdateRevision: "bbbb", TemplateRevision: "bbbb",
		TrafficBasis: pb.TrafficBasis_TRAFFIC_BASIS_ROUTED, TrafficWeight: 25, RequestedWeight: proto.Int32(50),
		Groups: []*pb.Group{
			{Leader: "vllm-0", Role: pb.GroupRole_GROUP_ROLE_STABLE, Revision: "aaaa", Ready: true},
			{Leader: "vllm-1", Role: pb.GroupRole_GROUP_ROLE_STABLE, Revision: "0000", Ready: true, Index: 1},
			{Leader: "vllm-2", Role: pb.GroupRole_GROUP_ROLE_STABLE, Index: 2},
			{Leader: "vllm-b-0", Role: pb.GroupRole_GROUP_ROLE_CANARY, Revision: "bbbb", Updated: true, Ready: true},
			{Leader: "vllm-b-1", Role: pb.GroupRole_GROUP_ROLE_CANARY, Revision: "cccc", Updated: true, Index: 1, Reason: "ImagePullBackOff", Pod: "vllm-b-1-1"},
		},
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	w := describeWorkload(upgrading(), nil, noon)
	for name, got := range map[string][2]string{
		"batch":    {w.Batch, "2/3 (50%)"},
		"traffic":  {w.Traffic, "canary gets 25% of requests, 50% requested"},
		"capacity": {w.Capacity, "3 ready of 4 requested, 5 exist"},
		"status":   {w.Groups[4].Status, "pod vllm-b-1-1: ImagePullBackOff"},
		"no pod":   {w.Groups[2].Status, "not ready"},
	} {
		assert.Equal(t, got[1], got[0], name)
	}
	letters := ""
	for _, g := range w.Groups {
		letters += g.Letter + map[bool]string{true: "+"}[g.Added] + " "
	}
	assert.True(t, !w.Groups[2].Wrong && w.Groups[4].Wrong && w.Groups[4].Pod == "vllm-b-1-1", "only the image is wrong: %+v", w.Groups)
	assert.Equal(t, "A C  B+ B+ ", letters, "letters")
	assert.True(t, slices.Contains(w.Facts, [2]string{"Revision", "A aaaa → B bbbb"}) && !slices.ContainsFunc(w.Facts, func(f [2]string) bool { return f[1] == "" || f[0] == "Template" }),
		"facts %q", w.Facts)
}

// During a promotion the canary's groups still serve, though they are no longer counted as updated.
func TestCapacity(t *testing.T) {
	t.Parallel()
	c := upgrading()
	c.State, c.StableReady, c.UpdatedReady = pb.State_STATE_PROMOTING, 3, 0
	c.Groups[2].Ready = true
	assert.Equal(t, "4 ready of 4 requested, 5 exist", describeWorkload(c, nil, noon).Capacity, "capacity")
	c.GroupsOmitted = 1
	assert.Equal(t, "3 ready of 4 requested, 5 exist", describeWorkload(c, nil, noon).Capacity, "without all groups: capacity")
}

// The page offers no command that is refused: to end the release of another host.
func TestAnotherHost(t *testing.T) {
	t.Parallel()
	for owner, want := range map[string]string{"": "", "lockstep-cli/jo@laptop": "", "argo-rollouts/default/vllm": "argo-rollouts/default/vllm"} {
		c := upgrading()
		c.Owner = owner
		assert.Equal(t, want, describeWorkload(c, nil, noon).Host, "a release of %q has another host", owner)
	}
}

func TestTraffic(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(c *pb.BatchContext)
		want   string
	}{
		"as requested": {func(c *pb.BatchContext) { c.TrafficWeight = 50 }, "canary gets 50% of requests"},
		"not routed":   {func(c *pb.BatchContext) { c.TrafficBasis = pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS }, "25% of ready groups are new"},
		"unknown":      {func(c *pb.BatchContext) { c.TrafficBasis = pb.TrafficBasis_TRAFFIC_BASIS_UNSPECIFIED }, "-"},
		"at rest":      {func(c *pb.BatchContext) { c.State = pb.State_STATE_COMPLETED }, "-"},
	} {
		c := upgrading()
		tc.change(c)
		assert.Equal(t, tc.want, trafficText(c), name)
	}
}

// The time in a state counts from the change that the dashboard observed. A workload that was in the state before says so.
func TestTimeInState(t *testing.T) {
	t.Parallel()
	c := upgrading()
	first := describeWorkload(c, nil, noon)
	same := describeWorkload(c, first, noon.Add(time.Minute))
	assert.True(t, same.AtLeast && same.Since.Equal(noon), "since %s, at least %t", same.Since, same.AtLeast)
	c.State = pb.State_STATE_ROLLED_BACK
	ended := describeWorkload(c, same, noon.Add(2*time.Minute))
	assert.True(t, !ended.AtLeast && ended.Since.Equal(noon.Add(2*time.Minute)) && ended.Live && ended.Batch == "-", "after its end: %+v", ended)
	assert.False(t, describeWorkload(c, nil, noon).Live, "a release that had ended before is live")
}

func TestWaitingTemplate(t *testing.T) {
	t.Parallel()
	c := upgrading()
	c.State, c.TemplateRevision = pb.State_STATE_ROLLED_BACK, "dddd"
	all := pageFacts(c)
	assert.True(t, slices.Contains(all, [2]string{"Template", "dddd waits for a release"}), "facts %q", all)
}

// The roles of a set have the words of the command line, and its units no object of their own.
func TestRoles(t *testing.T) {
	t.Parallel()
	c := upgrading()
	c.CanaryWorkload = "llm-bbbb"
	c.Roles = []*pb.Role{{Name: "prefill", Replicas: 4, StableReady: 4, Planned: 2, UpdatedReady: 1}, {Name: "decode", Replicas: 2, StableReady: 1}}
	all := pageFacts(c)
	assert.True(t, slices.Contains(all, [2]string{"Roles", "prefill 4/4 and 1/2 new, decode 1/2"}), "facts %q", all)
	assert.False(t, slices.ContainsFunc(all, func(f [2]string) bool { return f[0] == "Second workload" }), "facts %q", all)
}
