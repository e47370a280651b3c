// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestHistory(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }
	got := History([]*pb.Revision{
		{Name: "f", Images: []string{"server=v4", "log=v1"}, Current: true, ChangedBy: "kubectl-edit"},
		{Name: "e", Number: 5, CreateTime: ago(time.Minute), Images: []string{"server=v3", "log=v1"}, ReleaseId: "r5", Outcome: pb.State_STATE_ROLLING_BACK},
		{Name: "d", Number: 4, CreateTime: ago(time.Hour), Images: []string{"server=v3", "log=v1"}, ReleaseId: "r4", Owner: "jo", Outcome: pb.State_STATE_COMPLETED, Stable: true},
		{Name: "c", Number: 3, CreateTime: ago(25 * time.Hour), Images: []string{"server=v2", "log=v1"}, ReleaseId: "r3\x1b[2J"},
		{Name: "b", Number: 2, CreateTime: ago(26 * time.Hour), Images: []string{"server=v1"}, Problem: "ControllerRevision x can't be trusted"},
		{Name: "a", Number: 1, CreateTime: ago(27 * time.Hour), Images: []string{"server=v1"}, ChangedBy: "helm"},
	}, now)
	want := `
   REVISION  HASH  WHEN     IMAGES             RELEASE  OUTCOME
>  -         f     -        server=v4          -        waits for a release
   5         e     60s ago  -                  r5       rolling back
*  4         d     60m ago  server=v3          r4       promoted
   3         c     25h ago  server=v2, log=v1  r3 [2J   unknown
   2         b     26h ago  -                  -        can't be trusted: edited
   1         a     27h ago  server=v1          -        -
`
	assert.Empty(t, cmp.Diff(strings.TrimPrefix(want, "\n"), got), "history (-want +got)")
	never := History([]*pb.Revision{{Name: "a", Current: true, Stable: true}}, now)
	assert.True(t, strings.Contains(never, "*") && !strings.Contains(never, "waits"),
		"a workload that was never adopted runs its template:\n%s", never)
	assert.Contains(t, History(nil, now), "no history yet", "no history")
}
