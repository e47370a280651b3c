// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/stretchr/testify/assert"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// A template, or the Service, may be edited in mid-release so that the Service does not select the leaders of the template. LeaderWorkerSet would
// replace every group by ones that get no requests.
func TestTemplateThatTheServiceDoesNotSelect(t *testing.T) {
	for name, text := range map[string]string{
		"batch": `workload vllm replicas=2 revision=C hold
record phase=Progressing stable=A update=B target=50%#0@5m
groups 0-1 revision=A ready=1h
canary vllm-B replicas=1 carries=B target=50%#0@5m
groups 0 revision=B ready=4m serving
traffic requested=50 isolated prepared weight=50 pods=0`,
		"promotion": `workload vllm replicas=2 revision=C rolling=0/1/0
record phase=Promoting stable=A update=B set=0/1/0
groups 0 revision=A ready=1h
groups 1 revision=B ready=4m
canary vllm-B replicas=1 carries=B target=50%#0@5m
groups 0 revision=B ready=4m serving
traffic requested=50 isolated prepared weight=50 pods=0`,
		"changed Service": `workload vllm replicas=2 revision=B hold
record phase=Promoting stable=A update=B
groups 0-1 revision=A ready=1h
traffic isolated prepared`,
		"in place": `policy style=PARTITION
workload vllm replicas=2 revision=C rolling=1/1/0
record phase=Progressing stable=A update=B target=50%#0@5m set=1/1/0
groups 0 revision=A ready=1h
groups 1 revision=B ready=4m serving
traffic requested=50 isolated prepared weight=50 pods=1`,
	} {
		t.Run(name, func(t *testing.T) {
			o := observed(t, text)
			for range 3 { // the hold comes first
				w := o.Traffic.World
				w.Stable, w.Canary = w.Stable.DeepCopy(), w.Canary.DeepCopy()
				w.Stable.Spec.Selector["app"], w.Canary.Spec.Selector["app"] = "llm", "llm"
				o.Traffic = &traffic.Observed{Setup: o.Traffic.Setup, World: w}
				d := reconcile(o)
				if a, ok := d.Action.(SetStable); ok && a.Rolling != nil {
					o.Record, o.Stable.Rolling = &a.Record, *a.Rolling
					continue
				}
				if name == "changed Service" {
					assert.Equal(t, traffic.ReasonEndpointsNotFollowing, d.Reason, "%s", d.Message)
				} else {
					assert.Equal(t, ReasonTemplateRefused, d.Reason, "%s", d.Message)
					assert.Equal(t, pb.State_STATE_FAILED, d.State)
				}
				assert.Contains(t, d.Message, `requires app: "llm"`)
				return
			}
			t.Error("the hold is written again and again")
		})
	}
}
