// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"github.com/lockstep-rollouts/lockstep/internal/tracing"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/engine"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Trace returns the trace of a workload's release, false if the workload has no release with this id.
func (d *Driver) Trace(workload *pb.WorkloadRef, id string) (tracing.Release, bool) {
	key, err := d.keyFor(workload)
	if err != nil {
		return tracing.Release{}, false
	}
	s, err := d.engine.Observe(d.engine.Observer.Names.Resolve(key))
	if err != nil || s.Record == nil || s.Record.Release == nil || s.Record.Release.ID != id {
		return tracing.Release{}, false
	}
	return engine.Trace(s, s.Record.Release), true
}
