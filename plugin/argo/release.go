// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Step is what one step of a Rollout does, in the order of its fields.
type Step struct {
	// Upgrade is the target of groups at the update revision: "2" or "25%". Empty means unchanged.
	Upgrade string
	// Headers are the matches of the header route. An empty list removes it. Nil means unchanged.
	Headers *[]*pb.HeaderMatch
	// Mirror is the percentage of requests to mirror. Nil means unchanged.
	Mirror *int32
	// Weight is the percentage of requests for the update revision. Nil means unchanged.
	Weight *int32
	// Promote promotes the release.
	Promote bool
}

// ID returns the id of an attempt to release the Rollout's current template.
func (f Facts) ID(revision string, attempt int) ID {
	return ID{Rollout: f.short(), Number: f.Number, Hash: f.Hash, Revision: revision, Attempt: attempt}
}

// short returns the part of the uid that ids have.
func (f Facts) short() string {
	return converge.ShortUID(f.UID)
}

// Promoted reports whether the host considers the current template stable, as of the current spec.
func (f Facts) Promoted() bool {
	return f.Current && f.Stable != "" && f.Stable == f.Hash
}

// asked reports whether all steps, or a full promotion, ask for the template. That Argo considers it stable is no evidence by itself: it does
// so at the first deployment of a Rollout, if the ReplicaSet of the stable template is deleted, and keeps an old status if it can't process the spec.
func (f Facts) asked() bool {
	if f.Promoted() {
		return f.SeenAsked
	}
	return f.Current && f.Stable != "" && !f.Abort && (f.PromoteFull || f.StepsDone && !f.Skipped)
}

// aborted reports whether an abort rolls the release back: not once the host considers the template stable.
func (f Facts) aborted() bool { return f.Abort && !f.Promoted() }

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
