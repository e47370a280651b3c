// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// inPlace makes the release one in place, with the given updated leaders.
func (c *fakeCluster) inPlace(updated ...string) *fakeCluster {
	c.setup = NewSetupInPlace(workload("vllm"), "old", "new", c.setup.Policy, updated)
	return c
}

// TestSelectorsInPlace: both Services select leaders of one workload, each those of one revision.
func TestSelectorsInPlace(t *testing.T) {
	c := newFakeCluster(t).inPlace()
	for range 2 {
		write, err := Next(c.setup, Desired{Prepared: true}, c.world)
		if err != nil {
			t.Fatal(err)
		}
		c.apply(write)
	}
	stable, canary := c.world.Stable.Spec.Selector, c.world.Canary.Spec.Selector
	if stable[lws.RevisionKey] != "old" || canary[lws.RevisionKey] != "new" || canary[lws.SetNameLabelKey] != "vllm" || canary[lws.WorkerIndexLabelKey] != "0" {
		t.Errorf("stable %v, canary %v", stable, canary)
	}
	c.setup = NewSetupInPlace(workload("vllm"), "new", "newer", c.setup.Policy, nil)
	want, changed, err := isolated(c.world.Stable, c.setup)
	if err != nil || !changed || want.Spec.Selector[lws.RevisionKey] != "new" {
		t.Errorf("the isolation does not follow the stable revision: %v, %v", want.Spec.Selector, err)
	}
	after, _, err := lifted(want)
	if _, left := after.Spec.Selector[lws.RevisionKey]; err != nil || left {
		t.Errorf("the isolation is not removed: %v, %v", after.Spec.Selector, err)
	}
}
