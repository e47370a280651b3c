// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"strconv"
)

// Limits of what a request or a record may contain. Each is far above what a release needs, and keeps a record below the 256 KiB that
// Kubernetes accepts as annotations of an object. Package traffic has those of routes and of requests to leaders.
const (
	// MaxBatches bounds the batches of a policy.
	MaxBatches = 200
	// MaxOwner bounds the owner of a release, in bytes: hosts name a namespace and an object, of 63 and 253 bytes.
	MaxOwner = 512
	// MaxEndMessage bounds why an end was requested, in bytes.
	MaxEndMessage = 512
	// MaxGivenUp bounds the groups that a rollback with force gives up.
	MaxGivenUp = 1000
	// MaxWaiting bounds each text about what a release waits for, in bytes.
	MaxWaiting = 512
	// MaxLeaderMetadata bounds the metadata that a policy adds to leaders: keys and values together, in bytes.
	MaxLeaderMetadata = 32 << 10
)

const (
	// DefaultHistoryLimit is how many revisions a history keeps by default.
	DefaultHistoryLimit = 10
	// MaxHistoryLimit bounds the limit, and the revisions of an answer: each revision is an object with a whole template.
	MaxHistoryLimit = 100
)

// HistoryLimit reads HistoryLimitAnnotation. With an error it returns the default, so that a typo does not delete the
// history.
func HistoryLimit(annotations map[string]string) (int, error) {
	value, ok := annotations[HistoryLimitAnnotation]
	if !ok {
		return DefaultHistoryLimit, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > MaxHistoryLimit {
		return DefaultHistoryLimit, fmt.Errorf("annotation %s is %q, want a number from 0 (no history) to %d: %d is used instead",
			HistoryLimitAnnotation, value, MaxHistoryLimit, DefaultHistoryLimit)
	}
	return n, nil
}
