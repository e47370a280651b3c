// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"

	"google.golang.org/grpc"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ends is a display that counts the releases that end.
type ends int

func (e *ends) Observe(host.Event) {}
func (e *ends) End(host.Event)     { *e++ }
func (e *ends) Close()             {}

// A workload at rest does not end the release of one of another kind with its name.
func TestWatchedWorkloadsOfOneName(t *testing.T) {
	t.Parallel()
	var ended ends
	w := watcher{display: &ended, held: map[string]*pb.BatchContext{}, synced: true}
	of := func(kind string) *pb.WorkloadRef {
		return &pb.WorkloadRef{Kind: kind, Namespace: "serving", Name: "llm"}
	}
	w.change(&pb.BatchContext{Workload: of("LeaderWorkerSet"), State: pb.State_STATE_UPGRADING, ReleaseId: "r"})
	w.change(&pb.BatchContext{Workload: of("DisaggregatedSet"), State: pb.State_STATE_HOLDING})
	w.remove(of("DisaggregatedSet"))
	assert.Zero(t, ended, "releases ended, and none did")
	w.remove(of("LeaderWorkerSet"))
	assert.True(t, ended == 1, "%d releases ended with their workload", ended)
}

// said keeps the messages of a watch.
type said struct {
	ends
	messages []string
}

func (s *said) Observe(e host.Event) { s.messages = append(s.messages, string(e.Kind)+": "+e.Message) }

// A driver that fills its caches was not lost.
func TestWatchedDriverStarts(t *testing.T) {
	t.Parallel()
	var shown said
	w := watcher{display: &shown}
	starts := errors.New("the driver has just started")
	for _, answers := range []bool{false, false, true, false, true} {
		if answers {
			w.found()
		} else {
			w.lose(starts)
		}
	}
	want := []string{
		"retrying: waiting for the driver: the driver has just started", "retrying: lost the driver, retrying: the driver has just started",
		"reconnected: reconnected to the driver",
	}
	assert.True(t, slices.Equal(shown.messages, want), "shown %q, want %q", shown.messages, want)
}

// eager is a driver whose next change is on its way when a caller that has all workloads stops the watch.
type eager struct{ host.Watcher }

func (eager) WatchWorkloads(_ context.Context, r *pb.WatchWorkloadsRequest, _ ...grpc.CallOption) iter.Seq2[*pb.WatchWorkloadsResponse, error] {
	return func(yield func(*pb.WatchWorkloadsResponse, error) bool) {
		c := &pb.BatchContext{Workload: &pb.WorkloadRef{Name: "vllm"}}
		if r.GetIncludeGroups() {
			c.Groups = []*pb.Group{{}}
		}
		state := &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{Context: c}}
		synced := &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Synced{Synced: true}}
		_ = yield(state, nil) && yield(synced, nil) && yield(state, nil)
	}
}

func TestListedWorkloadsAreListedOnce(t *testing.T) {
	t.Parallel()
	for _, groups := range []bool{false, true} {
		held, err := underHold(t.Context(), eager{}, &pb.WatchWorkloadsRequest{IncludeGroups: groups})
		assert.True(t, err == nil && len(held) == 1 && (len(held[0].GetGroups()) == 1) == groups, "groups %t: %v, %v; want 1 workload", groups, held, err)
	}
}
