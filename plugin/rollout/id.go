// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"strconv"
	"strings"
)

// adopted takes the place of the pod template hash in the id of a release that only registers the owner of a workload at rest.
const adopted = "adopted"

// ID is a release id of a host with Rollouts. It identifies the Rollout's template and the attempt, so that the release alone tells
// whether a Rollout still wants it. No other state about attempts is stored.
type ID struct {
	// Rollout is a prefix of the Rollout's uid.
	Rollout string
	// Number is the Rollout's own revision number. It makes ids unique when a Rollout returns to an older template.
	Number string
	// Hash identifies the Rollout's template.
	Hash string
	// Revision is the template revision of the workload that is released.
	Revision string
	// Attempt counts from 1: a retry after an abort is a new release.
	Attempt int
}

// String formats the id.
func (id ID) String() string {
	return fmt.Sprintf("%s.%s.%s.%s.%d", id.Rollout, id.Number, id.Hash, id.Revision, id.Attempt)
}

// ParseID parses an id. It returns false for the ids of others.
func ParseID(s string) (ID, bool) {
	fields := strings.Split(s, ".")
	if len(fields) != 5 {
		return ID{}, false
	}
	attempt, err := strconv.Atoi(fields[4])
	if err != nil || attempt < 1 {
		return ID{}, false
	}
	return ID{Rollout: fields[0], Number: fields[1], Hash: fields[2], Revision: fields[3], Attempt: attempt}, true
}
