// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"testing"

	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Whatever the ratio of the entry role to another one, each batch of T units has ceil(T x Ri / Re) groups of it: at least one, never fewer than
// before, and exactly Ri at the end. Where units are replaced, no role ever exceeds its maxSurge or lacks more than its maxUnavailable.
func TestRelease_Ratios(t *testing.T) {
	t.Parallel()
	for _, style := range []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_PARTITION} {
		for entry := 1; entry <= 9; entry++ {
			for other := 1; other <= 9; other++ {
				t.Run(fmt.Sprintf("%s %d:%d", style, entry, other), func(t *testing.T) {
					t.Parallel()
					for _, surges := range []bool{true, false} {
						releaseRatio(t, style, surges, entry, other)
					}
				})
			}
		}
	}
}

// releaseRatio releases a set with one batch for each unit. Its roles replace the groups of a unit in place, or else by a surge.
func releaseRatio(t *testing.T, style pb.Style, surges bool, entry, other int) {
	t.Helper()
	p := &pb.ReleasePolicy{Style: style}
	for units := 1; units <= entry; units++ {
		p.Batches = append(p.Batches, fmt.Sprint(units))
	}
	policy, bad := record.ParsePolicy(p)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	of := lws.LeaderWorkerTemplate{Size: ptr.To[int32](1)}
	in := Input{Replicas: entry, Old: of, New: of, Policy: policy}
	for i, n := range []int{entry, other} {
		role, unit := plan.Role{Name: []string{"decode", "prefill"}[i], Replicas: n}, (n+entry-1)/entry
		if n%entry > 0 {
			unit++ // both revisions round their parts up
		}
		if surges || n < 2*unit {
			role.MaxSurge = unit // the last unit stays until the promotion
		} else {
			role.MaxUnavailable = unit
		}
		in.Roles = append(in.Roles, Role{role, of, of})
	}
	w := newWorld(in)
	r := newRecorder(in, w)
	r.begin("release")
	w.changed = func() {
		r.addWorldFrame()
		for i, role := range w.roles() {
			of := in.Roles[i]
			exist, ready := int(role.GetStable()+role.GetUpdated()), int(role.GetStableReady()+role.GetUpdatedReady())
			if plan.InPlace(style) && (exist > of.Replicas+of.MaxSurge || ready < of.Replicas-of.MaxUnavailable) {
				t.Errorf("%+v has %d groups, %d of them ready", of.Role, exist, ready)
			}
		}
	}
	last := []int32{1, 1}
	for batch := range p.Batches {
		require.NoError(t, w.runBatch(r, batch))
		for i, role := range w.roles() {
			n, want := role.GetUpdatedReady(), int32(((batch+1)*in.Roles[i].Replicas+entry-1)/entry)
			if n < last[i] || n > want || n < want && !plan.InPlace(style) {
				t.Errorf("%d units have %d of %d groups of %s, after %d", batch+1, n, want, role.GetName(), last[i])
			}
			last[i] = n
		}
	}
	require.NoError(t, w.request(plan.Promote{ReleaseID: releaseID}))
	require.NoError(t, w.until(r, pb.State_STATE_COMPLETED))
	for i, role := range w.roles() {
		if n := int(role.GetUpdatedReady()); n != in.Roles[i].Replicas || role.GetStable() != 0 {
			t.Errorf("%d groups of %s are at the new revision at the end, and %d at the old one", n, role.GetName(), role.GetStable())
		}
	}
}
