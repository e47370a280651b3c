// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"fmt"
	"strconv"
	"strings"
)

// adopted stands for the pod template hash in the id of the release that only tells whose a workload at rest is.
const adopted = "adopted"

// ID is a release id of this host. It says what the release is for, so that whoever finds it in the cluster can tell
// whether a Rollout still wants it: nothing else is remembered about attempts.
type ID struct {
	// Rollout is the beginning of the Rollout's uid.
	Rollout string
	// Number is the Rollout's own revision number. It keeps ids apart when a Rollout returns to an older template.
	Number string
	// Hash is the Rollout's pod template hash.
	Hash string
	// Revision is the workload's template revision that the release is to bring.
	Revision string
	// Attempt counts from 1: a retry after an abort is a new release.
	Attempt int
}

// String returns the id as the driver gets it.
func (id ID) String() string {
	return fmt.Sprintf("%s.%s.%s.%s.%d", id.Rollout, id.Number, id.Hash, id.Revision, id.Attempt)
}

// ParseID reads an id of this host. It is false for ids of others.
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
