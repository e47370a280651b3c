// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"time"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// What Update takes.
type (
	// Size is that of the terminal.
	Size struct{ Width, Height int }
	// Key is one that was pressed: "j", "up", "enter", "ctrl+c".
	Key string
	// Tick is the time.
	Tick time.Time
	// Change is one of the stream of all workloads.
	Change struct{ *pb.WatchWorkloadsResponse }
	// Detail is where one workload stands, with its groups.
	Detail struct{ *pb.BatchContext }
	// Missing is why the only workload that is looked at can't be any more.
	Missing struct{ Err error }
	// Lost is why no news comes from somewhere at the moment. It will be tried again.
	Lost struct {
		From Source
		Err  error
	}
	// Found says that news comes again.
	Found struct{ From Source }
	// Event is a Kubernetes event about a LeaderWorkerSet.
	Event struct {
		// ID is the same for each count of an event.
		ID string
		// Namespace and Name are of the LeaderWorkerSet.
		Namespace, Name string
		// At is when it happened last.
		At time.Time
		// Type is "Normal" or "Warning".
		Type, Reason, Message string
		// Deleted events are forgotten.
		Deleted bool
	}
	// NoEvents is why there are none.
	NoEvents string
	// Log is a line of the driver's log.
	Log string
)

// Source is where news comes from.
type Source string

// Sources.
const (
	// FromDriver are contexts.
	FromDriver Source = "the driver"
	// FromCluster are Kubernetes events.
	FromCluster Source = "the API server"
)
