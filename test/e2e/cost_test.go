// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// maxWrites is how many writes of cluster objects a canary release of four batches may take, those that the API server refuses included.
const maxWrites = 12

// A release writes a few objects, however many groups there are, and the second one of a process reads none. Events, leases and
// reviews don't count.
//
// Proves (test): A canary of four batches: at most 12 writes, and no reads after the first of a process.
func TestCanaryCost(t *testing.T) {
	e := newEnv(t)
	w := e.deploy(model("model", 4, 2))
	if _, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()}); err != nil {
		t.Fatal(err)
	}
	revision := ""
	policy := quarters()
	policy.Batches = []string{"25%", "50%", "75%", "100%"}
	for i := range 4 {
		w.edit(image(fmt.Sprintf("v%d", i+2)))
		release := fmt.Sprintf("r%d", i+1)
		w.await("the driver sees the template", func(c *pb.BatchContext) bool { return c.GetTemplateRevision() != revision })
		from := audit.Mark(t, e.kube, e.namespace)
		w.initialize(release, policy)
		for batch := range policy.Batches {
			w.upgrade(release, int32(batch))
		}
		w.finalize(release, promote)
		w.mustBeIdle()
		revision = w.context().GetTemplateRevision()
		var writes, reads []string
		for _, r := range audit.Between(t, e.cluster.AuditLog(), from, audit.Mark(t, e.kube, e.namespace), e.namespace) {
			o := r.ObjectRef
			switch {
			case r.User.Username != driver.User || slices.Contains([]string{"events", "leases"}, o.Resource):
			case r.IsWrite():
				writes = append(writes, fmt.Sprintf("%s/%s %d", r, o.Name, r.ResponseStatus.Code))
			case r.IsRead():
				reads = append(reads, r.Verb+" "+r.RequestURI)
			}
		}
		if len(writes) > maxWrites {
			t.Errorf("release %d has %d writes, want at most %d: %q", i+1, len(writes), maxWrites, writes)
		}
		if i > 0 && len(reads) > 0 {
			t.Errorf("release %d has %d reads: %q", i+1, len(reads), reads)
		}
		t.Logf("release %d: %d writes, %d reads", i+1, len(writes), len(reads))
	}
}
