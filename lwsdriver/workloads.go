// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"sync"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/encoded"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// WatchWorkloads sends the context of every workload under hold that the caller sees, and then each change, including added and removed
// workloads. It follows the workloads that the engine has processed, so it requests nothing of the API server but what the caller sees.
func (d *Driver) WatchWorkloads(req *pb.WatchWorkloadsRequest, stream grpc.ServerStreamingServer[pb.WatchWorkloadsResponse]) error {
	if err := d.serves(req.GetNamespace()); err != nil {
		return err
	}
	// A workload that changes while the present ones are listed must not be missed.
	changed, stop := d.engine.Observer.Changes.SubscribeAll()
	defer stop()
	defer d.states.watch()()
	w := workloadsWatch{driver: d, request: req, stream: stream, sent: map[types.NamespacedName]*encoded.Message{}}
	if err := w.sendChanges(d.engine.Observer.Held()); err != nil {
		return err
	}
	if err := stream.Send(&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Synced{Synced: true}}); err != nil {
		return err
	}
	for {
		select {
		case <-changed.Signal:
			if err := w.sendChanges(changed.Take()); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		case <-d.stopped:
			return drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "the driver is stopping: watch again at another driver")
		}
	}
}

// serves returns an error if the driver can't serve a namespace. Empty means all that it serves.
func (d *Driver) serves(namespace string) error {
	if own := d.options.Namespace; own != "" && namespace != "" && own != namespace {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "this driver serves namespace %q only, not %q", own, namespace)
	}
	return d.engine.Ready()
}

// workloadsWatch is one stream.
type workloadsWatch struct {
	driver  *Driver
	request *pb.WatchWorkloadsRequest
	stream  grpc.ServerStreamingServer[pb.WatchWorkloadsResponse]
	// sent is what the receiver has.
	sent map[types.NamespacedName]*encoded.Message
}

// sendChanges sends what changed about some workloads.
func (w *workloadsWatch) sendChanges(keys []types.NamespacedName) error {
	for _, key := range keys {
		if ns := w.request.GetNamespace(); ns != "" && ns != key.Namespace || !w.driver.engine.Covers(key) {
			continue
		}
		if err := w.sendChange(key); err != nil {
			return err
		}
	}
	return nil
}

// sendChange sends what changed about a workload, if anything did and the caller sees it.
func (w *workloadsWatch) sendChange(key types.NamespacedName) error {
	last, known := w.sent[key]
	held := observe.UnderHold(w.driver.engine.Observer.Workload(key))
	if !held {
		w.driver.states.forget(key)
	}
	if !held && !known {
		return nil
	}
	if w.request.GetNamespace() == "" { // else the server has checked the permission for it
		switch sees, err := access.Sees(w.stream.Context(), key.Namespace); {
		case err != nil:
			return err
		case !sees:
			// Even a removal would tell of a namespace that the caller no longer sees.
			delete(w.sent, key)
			return nil
		}
	}
	if !held {
		delete(w.sent, key)
		return w.stream.Send(&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: observe.RefOf(key)}})
	}
	state, err := w.driver.sharedState(key, w.request.GetIncludeGroups())
	// Equal states of a workload are one pointer. That of a workload deleted meanwhile is an error; its removal comes next.
	if err != nil || state == last || !observe.UnderHold(w.driver.engine.Observer.Workload(key)) {
		return err
	}
	w.sent[key] = state
	return w.stream.SendMsg(state) //nolint:wrapcheck // the stream's own
}

// stateOf returns the context of a workload and what it was computed from. If it can't be observed, the error is its state, and the
// snapshot nil.
func (d *Driver) stateOf(key types.NamespacedName, rows bool) (*pb.BatchContext, *observe.Snapshot) {
	c, s, err := d.contextOf(key, "", rows)
	if err != nil {
		c = &pb.BatchContext{Workload: observe.RefOf(key)}
		setFailed(c, err)
	}
	return c, s
}

// sharedState is stateOf, encoded once for all watches. Equal states of a workload are one pointer.
func (d *Driver) sharedState(key types.NamespacedName, rows bool) (*encoded.Message, error) {
	state := d.states.of(stateKey{key, rows})
	state.mu.Lock()
	defer state.mu.Unlock()
	last := d.engine.LastError(key)
	if s, _, err := d.engine.Look(key); err == nil && state.current != nil && s == state.snapshot && last == state.last { //nolint:errorlint // the very error
		return state.current, nil
	}
	c, s := d.stateOf(key, rows)
	now, err := encoded.New(&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{Context: c}})
	if err != nil {
		return nil, err
	}
	if state.snapshot, state.last = s, last; !now.Equal(state.current) {
		state.current = now
	}
	return state.current, nil
}

// sharedStates has the encoded state of each watched workload, which all watches of it share. It is kept while anything watches.
type sharedStates struct {
	mu      sync.Mutex
	watches int
	all     map[stateKey]*sharedState
}

type stateKey struct {
	types.NamespacedName

	rows bool
}

type sharedState struct {
	mu sync.Mutex
	// snapshot and last error are those of current. A nil snapshot is of none.
	snapshot *observe.Snapshot
	last     error
	current  *encoded.Message
}

// watch keeps states until stop.
func (s *sharedStates) watch() (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches++; s.all == nil {
		s.all = map[stateKey]*sharedState{}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watches--; s.watches == 0 {
			s.all = nil
		}
	}
}

// forget drops the states of a workload that is not under hold.
func (s *sharedStates) forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, stateKey{key, false})
	delete(s.all, stateKey{key, true})
}

// of returns the state of a workload. Its lock is its own: other workloads must not wait for what computes it.
func (s *sharedStates) of(key stateKey) *sharedState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[key] == nil {
		s.all[key] = &sharedState{}
	}
	return s.all[key]
}
