// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files")

var noon = time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(noon.Add(-d))
}

// upgrading is a canary release in its second batch, with a worker whose image can't be pulled.
func upgrading() *pb.BatchContext {
	return &pb.BatchContext{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}, ReleaseId: "cli-20260102-115647-k3x9",
		Owner: "lockstep-cli/jo@laptop", Style: pb.Style_STYLE_CANARY,
		State: pb.State_STATE_UPGRADING, Reason: "GroupsNotReady", Message: "1 of 2 groups is not ready",
		Replicas: 4, Size: 2, Batches: 3, CurrentBatch: proto.Int32(1), Target: "50%", Planned: 2, Desired: 2,
		Updated: 2, UpdatedReady: 1, StableReady: 4, Total: 6, Partition: 1000000,
		StableRevision: "5b9c8d7f6", UpdateRevision: "7d4f5b6c8", TrafficWeight: 20,
		TrafficBasis: pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS,
		BatchPlan:    []*pb.Batch{{Target: "25%", Groups: 1}, {Target: "50%", Groups: 2}, {Target: "100%", Groups: 4}},
		StartTime:    ago(3*time.Minute + 12*time.Second),
		Groups: []*pb.Group{
			stable(0), stable(1), stable(2), stable(3),
			{
				Index: 0, Role: pb.GroupRole_GROUP_ROLE_CANARY, Leader: "vllm-7d4f-0", Revision: "7d4f5b6c8",
				Updated: true, Ready: true, ReadyPods: 2, Pods: 2, Since: ago(2 * time.Minute),
			},
			{
				Index: 1, Role: pb.GroupRole_GROUP_ROLE_CANARY, Leader: "vllm-7d4f-1", Revision: "7d4f5b6c8",
				Updated: true, ReadyPods: 1, Pods: 2, Since: ago(45 * time.Second), Reason: "ImagePullBackOff",
				Pod: "vllm-7d4f-1-1", Message: "container server: ImagePullBackOff: back-off pulling image\n\"registry/vllm:v9\"\x1b[31m",
			},
		},
	}
}

// many is upgrading with 20 stable groups, of which one is lost.
func many() *pb.BatchContext {
	c := upgrading()
	c.Replicas = 20
	canary := c.GetGroups()[4:]
	c.Groups = nil
	for i := range int32(20) {
		c.Groups = append(c.Groups, stable(i))
	}
	c.Groups[17].Ready, c.Groups[17].ReadyPods, c.Groups[17].Reason = false, 1, "Starting"
	c.Groups = append(c.Groups, canary...)
	return c
}

func stable(index int32) *pb.Group {
	return &pb.Group{
		Index: index, Role: pb.GroupRole_GROUP_ROLE_STABLE, Leader: fmt.Sprintf("vllm-%d", index),
		Revision: "5b9c8d7f6", Ready: true, ReadyPods: 2, Pods: 2, Since: ago(76 * time.Hour),
	}
}

func unmanaged() *pb.BatchContext {
	return &pb.BatchContext{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}, State: pb.State_STATE_UNMANAGED,
		Reason: "NotAdopted", Message: "the workload's own controller rolls it", Replicas: 1, Size: 1, StableReady: 1,
		Total: 1, StableRevision: "5b9c8d7f6", UpdateRevision: "5b9c8d7f6", TemplateRevision: "5b9c8d7f6",
		Groups: []*pb.Group{{Leader: "vllm-0", Revision: "5b9c8d7f6", Role: pb.GroupRole_GROUP_ROLE_STABLE, Updated: true, Ready: true, ReadyPods: 1, Pods: 1}},
	}
}

// routedRelease is upgrading with traffic.
func routedRelease() *pb.BatchContext {
	c := upgrading()
	c.TrafficWeight, c.TrafficBasis = 25, pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
	return c
}

// cappedRelease is routedRelease, of which too few groups are ready for the requested weight.
func cappedRelease() *pb.BatchContext {
	c := routedRelease()
	c.RequestedWeight = proto.Int32(50)
	return c
}

// completed is upgrading after its promotion.
func completed() *pb.BatchContext {
	c := upgrading()
	c.State, c.Reason, c.Message = pb.State_STATE_COMPLETED, "Promoted", "4 groups run revision 7d4f5b6c8"
	c.Planned, c.Desired, c.Updated, c.UpdatedReady, c.StableReady, c.Total = 4, 4, 4, 4, 0, 4
	c.Groups = c.GetGroups()[:4]
	for _, g := range c.GetGroups() {
		g.Revision, g.Updated = c.GetUpdateRevision(), true
	}
	return c
}

func TestGolden(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		text   func() string
	}{
		"status":        {"a release in flight", func() string { return Status(upgrading(), noon, false) }},
		"status-routed": {"the share is of requests", func() string { return Status(routedRelease(), noon, false) }},
		"status-capped": {"the requested share, too", func() string { return Status(cappedRelease(), noon, false) }},
		"status-omitted": {"the driver left groups out", func() string {
			c := upgrading()
			c.Replicas, c.GroupsOmitted = 1_000_000, 999_996
			return Status(c, noon, false)
		}},
		"status-many": {"ready groups beyond a few are counted, others are shown", func() string { return Status(many(), noon, false) }},
		"status-all":  {"unless all are asked for", func() string { return Status(many(), noon, true) }},
		"status-in-place": {"in place the highest groups are updated first", func() string {
			c := upgrading()
			c.Style, c.StableReady, c.Groups = pb.Style_STYLE_PARTITION, 2, c.GetGroups()[:4]
			for _, g := range c.GetGroups()[2:] {
				g.Revision, g.Updated = c.GetUpdateRevision(), true
			}
			c.Groups[2].Ready, c.Groups[2].ReadyPods, c.Groups[2].Reason = false, 0, "Starting"
			return Status(c, noon, false)
		}},
		"status-missing": {"a group of the canary without a pod is one of its batch", func() string {
			c := upgrading()
			g := c.GetGroups()[5]
			g.Updated, g.Revision, g.ReadyPods, g.Since, g.Reason, g.Message = false, "", 0, nil, "PodMissing", "has not been created yet"
			return Status(c, noon, false)
		}},
		"status-promoting": {"a promotion has no batches", func() string {
			c := routedRelease()
			c.State, c.Intent, c.EndMessage = pb.State_STATE_PROMOTING, pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE, "good enough"
			return Status(c, noon, false)
		}},
		"status-unmanaged": {"no release and no groups", func() string { return Status(unmanaged(), noon, false) }},
		"frame":            {"a large terminal", func() string { return screenOf(50, upgrading()) }},
		"frame-low":        {"a short terminal leaves out ready groups", func() string { return screenOf(24, many()) }},
		"frame-cut":        {"and then lines at the end", func() string { return screenOf(14, many()) }},
		"frame-two":        {"each of several workloads that do not fit gets a line", func() string { return screenOf(24, upgrading(), named("bert", completed())) }},
		"frame-fleet": {"many workloads get a line each", func() string {
			return screenOf(10, upgrading(), named("bert", completed()), named("cohere", cappedRelease()))
		}},
		"status-completed": {
			"the groups are counted at the update revision",
			func() string { return Status(completed(), noon, false) },
		},
		"lines": {"one line per change", lines},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkGolden(t, name, tc.text())
		})
	}
}

func screenOf(height int, contexts ...*pb.BatchContext) string {
	return renderFrame(contexts, noon, height)
}

func named(name string, c *pb.BatchContext) *pb.BatchContext {
	c.Workload.Name = name
	return c
}

// TestColours: what is good, wrong or under way has a colour, in the tree, the header and the lines.
func TestColours(t *testing.T) {
	t.Parallel()
	failed := upgrading()
	failed.State = pb.State_STATE_FAILED
	text := Status(failed, noon, false)
	for _, want := range []string{Alert.Render("failed") + " (", Good.Render("4/4 ready"), Good.Render("✔") + " ready", Alert.Render("✖ ImagePullBackOff")} {
		assert.Contains(t, text, want, "no %q in\n%q", want, text)
	}
	for kind, want := range map[host.EventKind]string{host.EventWarning: Other.Render("warning:") + " x", host.EventFailed: Alert.Render("x")} {
		assert.Equal(t, want, messageLine(host.Event{Kind: kind, Message: "x"}), "event %s", kind)
	}
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	got = Plain(got)
	path := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(string(want), got), "%s: -want, +got", name)
	for line := range strings.Lines(got) {
		line = strings.TrimSuffix(line, "\n")
		assert.Equal(t, line, strings.TrimRight(line, " \t"), "%s: trailing space in %q", name, line)
		assert.False(t, strings.ContainsFunc(line, func(r rune) bool { return r < ' ' }), "%s: control character in %q", name, line)
	}
}

// events are those of a release. The third one has no visible change.
func events() []host.Event {
	at := func(s int, kind host.EventKind, message string, c *pb.BatchContext) host.Event {
		return host.Event{Kind: kind, Time: noon.Add(time.Duration(s) * time.Second), Message: message, Context: c}
	}
	same := upgrading()
	same.Groups[5].Since = ago(0)
	ready := upgrading()
	ready.State, ready.UpdatedReady, ready.Groups[5].Ready = pb.State_STATE_READY, 2, true
	finished := at(71, host.EventFinished, "release r1 is complete", ready)
	finished.Outcome = host.OutcomePromoted
	return []host.Event{
		at(0, host.EventStarted, "began release r1 of default/vllm", upgrading()),
		at(3, host.EventProgress, "", upgrading()),
		at(4, host.EventProgress, "", same),
		at(5, host.EventRetrying, "retrying: connection refused", same),
		at(6, host.EventWarning, "held too late [AdoptedDuringRoll]", same),
		at(70, host.EventProgress, "", ready),
		at(70, host.EventBatchReady, "batch 2/3 (50%) is ready", ready),
		finished,
	}
}

func lines() string {
	var b strings.Builder
	printer := NewLines(&b, noon, false)
	defer printer.Close()
	for _, e := range events() {
		printer.Observe(e)
	}
	return b.String()
}

func TestFrameFits(t *testing.T) {
	t.Parallel()
	for _, contexts := range [][]*pb.BatchContext{{upgrading()}, {upgrading(), named("bert", many())}} {
		for height := range 30 {
			text := renderFrame(contexts, noon, height)
			// One line of status, an empty line above it, and the cursor's.
			got := strings.Count(text, "\n")
			require.False(t, height > 2 && got >= height, "frame of height %d has %d lines", height, got)
		}
	}
}

func TestNamedLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := NewLines(&out, noon, true)
	at := func(second int, c *pb.BatchContext) host.Event {
		return host.Event{Kind: EventStatus, Time: noon.Add(time.Duration(second) * time.Second), Context: c}
	}
	l.Observe(at(1, named("a", upgrading())))
	l.Observe(at(1, named("b", routedRelease())))
	l.Observe(at(2, named("a", upgrading())))
	l.Observe(host.Event{Kind: host.EventRetrying, Time: noon.Add(3 * time.Second), Message: "lost the driver"})
	l.End(at(4, named("a", completed())))
	gone := at(6, named("b", routedRelease()))
	gone.Kind, gone.Message = EventGone, "no longer under hold"
	l.End(gone)
	l.Close()
	const pull = "canary group 1: pod vllm-7d4f-1-1: container server: ImagePullBackOff: back-off pulling image \"registry/vllm:v9\" [31m\n"
	want := "    1s  a  upgrading: batch 2/3 (50%), 1/2 groups ready, stable 4/4 ready, 20% of ready groups are new\n" +
		"    1s  a  " + pull +
		"    1s  b  upgrading: batch 2/3 (50%), 1/2 groups ready, stable 4/4 ready, canary gets 25% of requests\n" +
		"    1s  b  " + pull +
		"    3s  lost the driver\n" +
		"    4s  a  group 0 ready (vllm-0)\n    4s  a  group 1 ready (vllm-1)\n" +
		"    4s  a  group 2 ready (vllm-2)\n    4s  a  group 3 ready (vllm-3)\n" +
		"    4s  a  completed: 4 groups run revision 7d4f5b6c8\n" +
		"    6s  b  no longer under hold\n"
	assert.Empty(t, cmp.Diff(want, strings.ReplaceAll(out.String(), "  default/", "  ")), "-want, +got")
}

// A batch in place has replaced 2 of 4 groups, so both stable groups are ready, and with the new one 3 groups of the workload.
func TestReplacedGroupsAreNotMissing(t *testing.T) {
	t.Parallel()
	c := upgrading()
	c.Style, c.StableReady = pb.Style_STYLE_PARTITION, 2
	assert.Contains(t, Progress(c), "1/2 groups ready, stable 2/2 ready")
	list := func() string { return List([]*pb.BatchContext{c}, nil, false, "") }
	assert.Contains(t, list(), " 3/4 ")
	// A surge may have one more of these.
	c.Roles = []*pb.Role{{Name: "decode", Replicas: 4, StableReady: 3, Stable: 3, Updated: 2, UpdatedReady: 1, Planned: 2}}
	c.StableReady = 3
	assert.Contains(t, Progress(c), "stable 3/3 ready")
	assert.Equal(t, "decode 3/3 and 1/2 new", RoleCounts(c))
	assert.Contains(t, list(), " 4/4 ")
	// A rollback and a promotion want all of them.
	c.State, c.Intent = pb.State_STATE_ROLLING_BACK, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
	assert.Contains(t, Status(c, noon, false), "Stable    3/4 groups ready")
	assert.Contains(t, Status(c, noon, false), "Workload  default/vllm\n", "of all roles there are more than 4 groups")
	step := &pb.PlanStep{Roles: []*pb.Role{{Name: "decode", Updated: 1, Replicas: 4}}}
	assert.Contains(t, Plan("default/vllm", &pb.PlanResponse{Replicas: 4, Size: 2, Steps: []*pb.PlanStep{step}}), "Workload  default/vllm\n")
	// The old groups serve until a promotion has replaced them.
	c.Style, c.State, c.Roles = pb.Style_STYLE_CANARY, pb.State_STATE_PROMOTING, nil
	assert.Contains(t, list(), " 4/4 ")
}

// After a release the next template waits as it does before the first one: its outcome says nothing about that template.
func TestNextTemplateIsHeld(t *testing.T) {
	t.Parallel()
	for state, reasons := range map[pb.State]map[string]string{
		pb.State_STATE_COMPLETED:          {"Promoted": "completed", "NewRevisionWaits": "holding"},
		pb.State_STATE_NOTHING_TO_RELEASE: {"NothingToRelease": "nothing to release", "NewRevisionWaits": "holding"},
		pb.State_STATE_ROLLED_BACK:        {"RolledBack": "rolled back", "NewRevisionWaits": "holding"},
	} {
		for reason, want := range reasons {
			c := completed()
			c.State, c.Reason = state, reason
			assert.Contains(t, Plain(Status(c, noon, false)), "State     "+want+" (", "%s (%s)", state, reason)
			assert.Contains(t, List([]*pb.BatchContext{c}, nil, false, ""), "vllm  "+want+" ", "%s (%s)", state, reason)
		}
	}
}

func TestStatusNamesTemplate(t *testing.T) {
	t.Parallel()
	for want, revisions := range map[string][]string{
		"Template  b, run by all groups\n":    {"b", "b"},
		"Template  b, run by 1 of 2 groups\n": {"a", "b"},
		"Template  b, run by no group\n":      {"a", "a"},
		"Template  b\n":                       nil,
	} {
		c := &pb.BatchContext{TemplateRevision: "b"}
		for _, r := range revisions {
			c.Groups = append(c.Groups, &pb.Group{Revision: r})
		}
		text := Status(c, noon, false)
		assert.Contains(t, text, want, "%v: no %q in\n%s", revisions, want, text)
	}
}

// screen is a terminal that supports the sequences that Live writes.
type screen struct {
	mu    sync.Mutex
	lines []string
}

var upAndClear = regexp.MustCompile("^\x1b\\[([0-9]+)A\r\x1b\\[J")

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := string(p)
	if match := upAndClear.FindStringSubmatch(text); match != nil {
		up, err := strconv.Atoi(match[1])
		if err != nil {
			return 0, err
		}
		s.lines = s.lines[:len(s.lines)-up]
		text = strings.TrimPrefix(text, match[0])
	}
	if text = Plain(strings.NewReplacer(noWrap, "", wrap, "").Replace(text)); text != "" {
		s.lines = append(s.lines, strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
	}
	return len(p), nil
}

func TestLiveWithoutContext(t *testing.T) {
	t.Parallel()
	s := &screen{}
	live := NewLive(s, noon, func() int { return 0 })
	live.Observe(host.Event{Kind: host.EventRetrying, Time: noon, Message: "retrying"})
	live.Close()
	assert.Empty(t, cmp.Diff([]string{"    0s  retrying"}, s.lines), "screen: -want, +got")
}

// Each workload is drawn until its release ends, of which a line stays.
func TestLiveShowsSeveralWorkloads(t *testing.T) {
	t.Parallel()
	s := &screen{}
	live := NewLive(s, noon, func() int { return 60 })
	live.Observe(host.Event{Kind: EventStatus, Time: noon, Context: named("b", upgrading())})
	live.Observe(host.Event{Kind: EventStatus, Time: noon, Context: named("a", upgrading())})
	live.End(host.Event{Kind: EventStatus, Time: noon, Context: named("b", completed())})
	live.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(s.lines, "\n")
	assert.True(t, s.lines[0] == "    0s  default/b  completed: 4 groups run revision 7d4f5b6c8" && strings.Count(text, "Workload  ") == 1,
		"want a line of b's end above the status of a:\n%s", text)
}
