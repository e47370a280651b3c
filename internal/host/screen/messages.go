// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"time"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Messages of Update.
type (
	// Size is the terminal's size.
	Size struct{ Width, Height int }
	// Key is a pressed key: "j", "up", "enter", "ctrl+c".
	Key string
	// Tick is the current time.
	Tick time.Time
	// Change is a response of the stream of all workloads.
	Change struct{ *pb.WatchWorkloadsResponse }
	// Detail is the context of one workload, with its groups.
	Detail struct{ *pb.BatchContext }
	// Missing says why the only workload is not watched any more.
	Missing struct{ Err error }
	// Lost says that a source is unreachable. It is retried.
	Lost struct {
		From Source
		Err  error
	}
	// Found says that a source is reachable again.
	Found struct{ From Source }
	// Event is a Kubernetes event about a LeaderWorkerSet.
	Event struct {
		// ID identifies an event, whatever its count.
		ID string
		// Namespace and Name are those of the LeaderWorkerSet.
		Namespace, Name string
		// At is the time of the last occurrence.
		At time.Time
		// Type is "Normal" or "Warning".
		Type, Reason, Message string
		// Deleted removes the event.
		Deleted bool
	}
	// NoEvents says why there are no events.
	NoEvents string
	// Log is a log line of the driver.
	Log string
)

// Source is a source of messages.
type Source string

// Sources.
const (
	// FromDriver is the source of contexts.
	FromDriver Source = "the driver"
	// FromCluster is the source of Kubernetes events.
	FromCluster Source = "the API server"
)
