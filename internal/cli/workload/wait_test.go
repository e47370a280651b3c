// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	vNone = ""
	v1    = "aaaa"
	v2    = "bbbb"
	v3    = "cccc"
)

// rows returns ready stable groups at these revisions.
func rows(revisions ...string) []*pb.Group {
	all := make([]*pb.Group, 0, len(revisions))
	for _, revision := range revisions {
		all = append(all, &pb.Group{Role: pb.GroupRole_GROUP_ROLE_STABLE, Revision: revision, Ready: true})
	}
	return all
}

func status(state pb.State, template string, generation int64, groups ...string) *pb.BatchContext {
	return &pb.BatchContext{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}, State: state, Replicas: 2, TemplateRevision: template,
		UpdateRevision: template, ObservedGeneration: generation, Groups: rows(groups...),
	}
}

// released returns a status of a release of v2.
func released(state pb.State, template string, groups ...string) *pb.BatchContext {
	c := status(state, template, 7, groups...)
	c.ReleaseId, c.Owner, c.UpdateRevision, c.Reason, c.Message = "r1", "argo-rollouts/default/vllm", v2, "Why", "because"
	return c
}

func TestGoal(t *testing.T) {
	t.Parallel()
	type seen []*pb.BatchContext
	const (
		holding     = pb.State_STATE_HOLDING
		unmanaged   = pb.State_STATE_UNMANAGED
		ready       = pb.State_STATE_READY
		promoting   = pb.State_STATE_PROMOTING
		completed   = pb.State_STATE_COMPLETED
		failed      = pb.State_STATE_FAILED
		upgrading   = pb.State_STATE_UPGRADING
		rollingBack = pb.State_STATE_ROLLING_BACK
		rolledBack  = pb.State_STATE_ROLLED_BACK
	)
	unready, handedOver, empty := released(completed, v2, v2, v2), released(completed, v2, v2, v2), status(holding, v2, 7)
	unready.Groups[1].Ready = false
	handedOver.Workload.Name, handedOver.ObservedGeneration = "vllm-bbbb", 2
	empty.Replicas = 0
	for _, test := range []struct {
		reason string
		seen   seen
		// waits is a part of what it waits for after the last context, code that of the error. Neither: the goal is reached.
		waits string
		code  int
	}{
		{"older generation: the cache is older than the edit, and shows a workload at rest", seen{status(holding, v1, 6, v1, v1)}, "observed generation 6, not 7", exit.OK},
		{"no revision: LWS has not recorded the template", seen{status(holding, vNone, 7, v1, v1)}, "generation", exit.OK},
		{"held: no host runs, so nothing is in flight", seen{status(holding, v2, 7, v1, v1)}, "template bbbb is held and waits for a release by its host", exit.OK},
		{"held after a release: the last release is over, and its owner is known", seen{released(completed, v3, v2, v2)}, "template cccc is held and waits for a release by argo-rollouts/default/vllm", exit.OK},
		{"not adopted, rolled by LWS: without the hold LWS rolls the template out", seen{status(unmanaged, v2, 7, v2, v1)}, "1 of 2 groups run template bbbb", exit.OK},
		{"not adopted: LWS has rolled the template out", seen{status(unmanaged, v2, 7, v2, v2)}, "", exit.OK},
		{"last batch in place: every group runs the template, the release is not promoted", seen{released(ready, v2, v2, v2)}, "release r1 by argo-rollouts/default/vllm is ready: because", exit.OK},
		{"promoting: the driver has not removed what the release added", seen{released(promoting, v2, v2, v2)}, "is promoting", exit.OK},
		{"state of a newer driver: an unknown state is in flight", seen{released(pb.State(99), v2, v2, v2)}, "release r1", exit.OK},
		{"completed: every group runs the template, and the release is over", seen{released(promoting, v2, v2, v1), released(completed, v2, v2, v2)}, "", exit.OK},
		{"completed, group not ready: a group was lost after the promotion", seen{unready}, "1 of 2 groups run template bbbb and are ready", exit.OK},
		{"completed, scaled up: a group is missing", seen{released(completed, v2, v2)}, "1 of 2 groups", exit.OK},
		{"surge group: LWS has more groups than requested", seen{status(unmanaged, v2, 7, v2, v2, v2)}, "3 of 3 groups", exit.OK},
		{"handed over: the object is another one, whose generations count from 1", seen{handedOver}, "", exit.OK},
		{"failed: a user has to decide", seen{released(failed, v2, v1, v1)}, "", exit.Failed},
		{"older release failed: the release will follow the newer template", seen{released(failed, v3, v1, v1)}, "is failed", exit.OK},
		{"rolling back: the end is recorded", seen{released(upgrading, v2, v1, v1), released(rollingBack, v2, v1, v1)}, "", exit.RolledBack},
		{"rolled back: the template waits, but for a user", seen{released(rolledBack, v2, v1, v1)}, "", exit.RolledBack},
		{"rolled back by a revert: every group runs the template in the spec, which is not the one that was waited for", seen{released(ready, v2, v1, v1), released(rolledBack, v1, v1, v1)}, "", exit.RolledBack},
		{"reverted before: the wait is for the revert, which rolled the release back", seen{released(rollingBack, v1, v1, v1), released(rolledBack, v1, v1, v1)}, "", exit.OK},
		{"newer template: a later template replaces that of the start", seen{released(ready, v2, v1, v1), released(completed, v3, v3, v3)}, "", exit.OK},
		{"no groups: no group runs another template", seen{empty}, "", exit.OK},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			g := &goal{object: "vllm", generation: 7}
			var waits string
			var err error
			for _, c := range test.seen {
				waits, err = g.judge(c)
			}
			assert.True(t, exit.Code(err) == test.code && (waits == "") == (test.waits == "") && strings.Contains(waits, test.waits),
				"waits for %q, %v, want %q, exit code %d", waits, err, test.waits, test.code)
		})
	}
}
