// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestMultiLines(t *testing.T) {
	t.Parallel()
	of := func(name string, c *pb.BatchContext) *pb.BatchContext {
		c.Workload.Name = name
		return c
	}
	resting := unmanaged()
	resting.State = pb.State_STATE_HOLDING
	var out bytes.Buffer
	s := NewMultiLines(&out, noon)
	observe := func(second int, c *pb.BatchContext) {
		s.Observe(host.Event{Kind: EventStatus, Time: noon.Add(time.Duration(second) * time.Second), Context: c})
	}
	observe(0, of("at-rest", resting))
	observe(0, of("done-before", completed()))
	observe(1, of("a", upgrading()))
	observe(1, of("b", routedRelease()))
	observe(2, of("a", upgrading()))
	s.Observe(host.Event{Kind: host.EventRetrying, Time: noon.Add(3 * time.Second), Message: "lost the driver"})
	observe(4, of("a", completed()))
	observe(5, of("a", completed()))
	s.Gone(&pb.WorkloadRef{Namespace: "default", Name: "b"}, noon.Add(6*time.Second))
	s.Gone(&pb.WorkloadRef{Namespace: "default", Name: "at-rest"}, noon.Add(6*time.Second))
	s.Close()
	const pull = "canary group 1: pod vllm-7d4f-1-1: ImagePullBackOff: back-off pulling image \"registry/vllm:v9\" [31m\n"
	want := "    1s  default/a  upgrading: batch 2/3 (50%), 1/2 groups ready, stable 4/4 ready, 20% of ready groups are new\n" +
		"    1s  default/a  " + pull +
		"    1s  default/b  upgrading: batch 2/3 (50%), 1/2 groups ready, stable 4/4 ready, canary gets 25% of requests\n" +
		"    1s  default/b  " + pull +
		"    3s  lost the driver\n" +
		"    4s  default/a  group 0 ready (vllm-0)\n    4s  default/a  group 1 ready (vllm-1)\n" +
		"    4s  default/a  group 2 ready (vllm-2)\n    4s  default/a  group 3 ready (vllm-3)\n" +
		"    4s  default/a  completed: 4 groups run revision 7d4f5b6c8\n" +
		"    6s  default/b  no longer under hold\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}
