// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/plugin/encoded"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// sharedStates has the encoded state of each watched workload, which all watches of it share: it is computed once for each change, and
// kept while anything watches.
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
	changes atomic.Uint64

	mu sync.Mutex
	// at is the number of changes before current was computed.
	at      uint64
	current *encoded.Message
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

// changed notes a change of a workload.
func (s *sharedStates) changed(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rows := range []bool{false, true} {
		if state := s.all[stateKey{key, rows}]; state != nil {
			state.changes.Add(1)
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

// of returns the state of a workload, and the same pointer while that is the same.
func (s *sharedStates) of(key stateKey, compute func() *pb.BatchContext) (*encoded.Message, error) {
	s.mu.Lock()
	state := s.all[key]
	if state == nil {
		state = &sharedState{}
		s.all[key] = state
	}
	s.mu.Unlock()
	state.mu.Lock()
	defer state.mu.Unlock()
	changes := state.changes.Load()
	if state.current != nil && state.at == changes {
		return state.current, nil
	}
	now, err := encoded.New(&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{Context: compute()}})
	if err != nil {
		return nil, err
	}
	if state.at = changes; !now.Equal(state.current) {
		state.current = now
	}
	return state.current, nil
}
