// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files")

var noon = time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(-d)) }

// upgrading is a routed canary release in its second batch, with a worker whose image can't be pulled.
func upgrading(name string) *pb.BatchContext {
	c := &pb.BatchContext{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: name}, ReleaseId: "cli-20260102-115647-k3x9",
		Owner: "lockstep-cli/jo@laptop", Style: pb.Style_STYLE_CANARY,
		State: pb.State_STATE_UPGRADING, Reason: "GroupsNotReady",
		Message:  "1 of 2 groups is not ready; group 1: pod vllm-7d4f-1-1: back-off pulling image \"registry/vllm:v9\"",
		Replicas: 4, Size: 2, Batches: 3, CurrentBatch: proto.Int32(1), Target: "50%", Planned: 2, Desired: 2,
		Updated: 2, UpdatedReady: 1, StableReady: 4, Total: 6, Partition: 1000000,
		StableRevision: "5b9c8d7f6", UpdateRevision: "7d4f5b6c8", CanaryWorkload: name + "-7d4f",
		TrafficWeight: 25, RequestedWeight: proto.Int32(50), TrafficBasis: pb.TrafficBasis_TRAFFIC_BASIS_ROUTED,
		BatchPlan: []*pb.Batch{{Target: "25%", Groups: 1}, {Target: "50%", Groups: 2}, {Target: "100%", Groups: 4}},
		StartTime: ago(3*time.Minute + 12*time.Second), Deadline: timestamppb.New(noon.Add(27*time.Minute + 12*time.Second)),
	}
	for i := range int32(4) {
		c.Groups = append(c.Groups, &pb.Group{
			Index: i, Role: pb.GroupRole_GROUP_ROLE_STABLE, Leader: fmt.Sprintf("%s-%d", name, i),
			Revision: "5b9c8d7f6", Ready: true, ReadyPods: 2, Pods: 2, Since: ago(76 * time.Hour),
		})
	}
	c.Groups = append(c.Groups,
		&pb.Group{
			Index: 0, Role: pb.GroupRole_GROUP_ROLE_CANARY, Leader: name + "-7d4f-0", Revision: "c0ffee",
			Updated: true, Ready: true, ReadyPods: 2, Pods: 2, Since: ago(2 * time.Minute),
		},
		&pb.Group{
			Index: 1, Role: pb.GroupRole_GROUP_ROLE_CANARY, Leader: name + "-7d4f-1", Revision: "c0ffee",
			Updated: true, ReadyPods: 1, Pods: 2, Since: ago(45 * time.Second), Reason: "ImagePullBackOff",
			Pod: name + "-7d4f-1-1", Message: "back-off pulling image\n\"registry/vllm:v9\"\x1b[31m",
		})
	return c
}

// promoting is the promotion of a large partition release, with a group of a third revision.
func promoting() *pb.BatchContext {
	c := upgrading("llama-405b")
	c.Style, c.State, c.Reason, c.Message = pb.Style_STYLE_PARTITION, pb.State_STATE_PROMOTING, "RollingNatively", "29 of 64 groups run revision 7d4f5b6c8"
	c.Replicas, c.Planned, c.Desired, c.Updated, c.UpdatedReady, c.StableReady, c.Total = 64, 64, 64, 31, 29, 32, 64
	c.TrafficBasis, c.RequestedWeight, c.TrafficWeight, c.CanaryWorkload = pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS, nil, 48, ""
	c.Groups = nil
	for i := range int32(64) {
		g := &pb.Group{Index: i, Role: pb.GroupRole_GROUP_ROLE_STABLE, Leader: fmt.Sprintf("llama-405b-%d", i), Revision: "5b9c8d7f6", Ready: true, ReadyPods: 2, Pods: 2, Since: ago(time.Hour)}
		if i >= 33 {
			g.Revision, g.Updated = "7d4f5b6c8", true
		}
		switch i {
		case 33, 34:
			g.Ready, g.ReadyPods, g.Reason, g.Message = false, 1, "NotReady", "is not ready"
		case 32:
			g.Revision, g.Ready, g.ReadyPods, g.Reason, g.Pod, g.Message = "", false, 0, "LeaderMissing", g.GetLeader(), "has no leader"
		case 5:
			g.Revision = "0ddba11"
		}
		c.Groups = append(c.Groups, g)
	}
	return c
}

func failed() *pb.BatchContext {
	c := upgrading("mistral")
	c.State, c.Reason, c.Message = pb.State_STATE_FAILED, "ProgressDeadlineExceeded", "no progress for 30m0s (since 11:20:00 UTC): 1 of 2 groups is not ready"
	c.Deadline = ago(10 * time.Minute)
	c.Groups = nil
	return c
}

func resting(name string) *pb.BatchContext {
	return &pb.BatchContext{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: name}, State: pb.State_STATE_HOLDING, Reason: "AtRest",
		Message: "held at rest", Replicas: 2, Size: 4, StableReady: 2, Total: 2, StableRevision: "5b9c8d7f6",
	}
}

func completed(c *pb.BatchContext) *pb.BatchContext {
	c = proto.CloneOf(c)
	c.State, c.Reason, c.Message = pb.State_STATE_COMPLETED, "Promoted", "every group runs revision 7d4f5b6c8"
	c.Planned, c.Desired, c.Updated, c.UpdatedReady, c.StableReady, c.Total = 4, 4, 4, 4, 0, 4
	c.RequestedWeight, c.Deadline, c.CanaryWorkload = nil, nil, ""
	c.Groups = c.GetGroups()[:4]
	for _, g := range c.GetGroups() {
		g.Revision, g.Updated = c.GetUpdateRevision(), true
	}
	return c
}

// listed is a context of the stream of all workloads.
func listed(c *pb.BatchContext) Change {
	c = proto.CloneOf(c)
	c.Groups = nil
	return Change{&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{Context: c}}}
}

func synced() Change {
	return Change{&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Synced{Synced: true}}}
}

func gone(name string) Change {
	return Change{&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: &pb.WorkloadRef{Namespace: "default", Name: name}}}}
}

func event(name, id, kind, reason, message string, before time.Duration) Event {
	return Event{ID: id, Namespace: "default", Name: name, At: noon.Add(-before), Type: kind, Reason: reason, Message: message}
}

// screenAfter returns a screen that has handled messages.
func screenAfter(options Options, width, height int, messages ...any) *Screen {
	s := New(options, noon)
	s.Update(Size{width, height})
	for _, n := range messages {
		s.Update(n)
	}
	return s
}

var here = Options{Namespace: "default", Unicode: true}

// busy returns the messages of three running releases and two workloads at rest.
func busy() []any {
	return []any{
		listed(promoting()), listed(failed()), listed(resting("bert")), listed(upgrading("vllm")), listed(resting("whisper")), synced(),
		Detail{promoting()}, Detail{upgrading("vllm")},
		event("vllm", "1", "Normal", "ReleasePrepared", "release cli-20260102-115647-k3x9: prepared", 3*time.Minute),
		event("vllm", "2", "Normal", "BatchReady", "release cli-20260102-115647-k3x9: batch 1/3 (25%) is ready", time.Minute),
		event("vllm-7d4f", "3", "Warning", "FailedCreate", "create Pod failed\nquota «GPU» 模型", 30*time.Second),
		event("other", "4", "Normal", "BatchReady", "of another", time.Second),
	}
}

func keys(names ...string) []any {
	all := make([]any, 0, len(names))
	for _, n := range names {
		all = append(all, Key(n))
	}
	return all
}

func TestGolden(t *testing.T) {
	t.Parallel()
	ascii := Options{Namespace: "default"}
	everywhere := Options{Unicode: true}
	only := Options{Namespace: "default", Only: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}, Unicode: true}
	lost := Lost{From: FromDriver, Err: errors.New("dial unix /run/lockstep.sock: connect: connection refused")}
	cases := map[string]struct {
		reason string
		screen *Screen
	}{
		"large":       {"a large terminal shows the list and a whole detail", screenAfter(here, 140, 40, append(busy(), keys("j", "j")...)...)},
		"usual":       {"80x24, where the detail is cut", screenAfter(here, 80, 24, append(busy(), keys("G")...)...)},
		"usual-ascii": {"a terminal without UTF-8 has the same content", screenAfter(ascii, 80, 24, append(busy(), keys("G")...)...)},
		"many-groups": {"many groups have several rows", screenAfter(here, 100, 30, append(busy(), keys("enter")...)...)},
		"tiny-list":   {"40x10 has room for the list only", screenAfter(here, 40, 10, busy()...)},
		"tiny-detail": {"40x10 has room for the detail only", screenAfter(here, 40, 10, append(busy(), keys("G", "enter")...)...)},
		"tiny-ascii":  {"40x10 without UTF-8", screenAfter(ascii, 40, 10, append(busy(), keys("G", "enter", "pgdown")...)...)},
		"all":         {"workloads at rest are shown on request", screenAfter(everywhere, 100, 24, append(busy(), keys("a")...)...)},
		"lost":        {"an unreachable driver is shown", screenAfter(here, 100, 24, append(busy(), lost, Tick(noon.Add(12*time.Second)))...)},
		"back":        {"a driver that is reachable again is not shown", screenAfter(here, 100, 24, append(busy(), lost, Tick(noon.Add(12*time.Second)), listed(upgrading("vllm")))...)},
		"ended": {"a release that has ended stays", screenAfter(here, 100, 24, append(busy(), Tick(noon.Add(time.Second)),
			listed(completed(upgrading("vllm"))), gone("mistral"), Detail{completed(upgrading("vllm"))}, Tick(noon.Add(time.Minute)), Key("G"))...)},
		"only":    {"one workload has the whole screen", screenAfter(only, 100, 24, Detail{upgrading("vllm")}, NoEvents("events is forbidden"))},
		"waiting": {"the driver has not answered yet", screenAfter(here, 60, 8)},
		"resting": {"no release runs", screenAfter(here, 60, 8, listed(resting("bert")), synced())},
		"nothing": {"no workload is under hold", screenAfter(here, 60, 8, synced())},
		"help":    {"the keys", screenAfter(here, 80, 24, append(busy(), Key("?"))...)},
		"log":     {"a log line is in the footer", screenAfter(here, 60, 8, synced(), Log("level=WARN msg=\"slow\"\n"))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ansi.Strip(tc.screen.View()) + "\n"
			path := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}
