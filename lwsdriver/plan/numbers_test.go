// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A decision costs by the groups that exist, not by the numbers in a spec, which users without the verb drive may write.
func TestNumbersOfASetCostNothing(t *testing.T) {
	t.Parallel()
	refused := map[string]string{"prefill": "at most 10000 units of a slice", "decode": "Raise maxSurge of role prefill to 1 and maxSurge of role decode to 536870911, or"}
	for _, style := range []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_PARTITION} {
		for i, role := range rolesOf4and2 {
			for _, phase := range []record.Phase{"", record.Progressing, record.Promoting, record.RollingBack} {
				t.Run(fmt.Sprintf("%s/%s/%s", style, role.Name, phase), func(t *testing.T) {
					t.Parallel()
					o := rolesObservation(1, 1)
					o.Record.Release.Phase, o.Policy.Style, o.Record.Release.Target = phase, style, o.Bounds.Target
					if phase == "" {
						o = rolesObservation(0, 0)
						o.Record.Release = nil
					}
					o.Roles[i].Replicas, o.Roles[i].MaxUnavailable = math.MaxInt32, 1
					decided := make(chan error, 1)
					go func() {
						o := Judge(o)
						for _, intent := range []Intent{nil, RollBack{ReleaseID: "r"}, Promote{ReleaseID: "r"}} {
							_, _ = Decide(o, intent)
						}
						_, err := Decide(o, Begin{ReleaseID: "r", Policy: &pb.ReleasePolicy{Style: style, Batches: []string{"1", "100%"}}})
						decided <- err
					}()
					select {
					case err := <-decided:
						if phase == "" && style == pb.Style_STYLE_PARTITION {
							assert.ErrorContains(t, err, refused[role.Name])
						}
					case <-time.After(20 * time.Second):
						require.Fail(t, "a decision takes longer than 20 s")
					}
				})
			}
		}
	}
}
