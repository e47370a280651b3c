// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"strings"
	"testing"

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
	for name, test := range map[string]struct {
		reason string
		seen   seen
		// waits is a part of what it waits for after the last context, code that of the error. Neither: the goal is reached.
		waits string
		code  int
	}{
		"older generation": {
			reason: "the cache is older than the edit, and shows a workload at rest",
			seen:   seen{status(pb.State_STATE_HOLDING, v1, 6, v1, v1)}, waits: "observed generation 6, not 7",
		},
		"no revision": {
			reason: "LWS has not recorded the template",
			seen:   seen{status(pb.State_STATE_HOLDING, vNone, 7, v1, v1)}, waits: "generation",
		},
		"held": {
			reason: "no host runs, so nothing is in flight",
			seen:   seen{status(pb.State_STATE_HOLDING, v2, 7, v1, v1)}, waits: "template bbbb is held and waits for a release by its host",
		},
		"held after a release": {
			reason: "the last release is over, and its owner is known",
			seen:   seen{released(pb.State_STATE_COMPLETED, v3, v2, v2)}, waits: "template cccc is held and waits for a release by argo-rollouts/default/vllm",
		},
		"not adopted, rolled by LWS": {
			reason: "without the hold LWS rolls the template out",
			seen:   seen{status(pb.State_STATE_UNMANAGED, v2, 7, v2, v1)}, waits: "1 of 2 groups run template bbbb",
		},
		"not adopted": {
			reason: "LWS has rolled the template out",
			seen:   seen{status(pb.State_STATE_UNMANAGED, v2, 7, v2, v2)},
		},
		"last batch in place": {
			reason: "every group runs the template, the release is not promoted",
			seen:   seen{released(pb.State_STATE_READY, v2, v2, v2)}, waits: "release r1 by argo-rollouts/default/vllm is ready: because",
		},
		"promoting": {
			reason: "the driver has not removed what the release added",
			seen:   seen{released(pb.State_STATE_PROMOTING, v2, v2, v2)}, waits: "is promoting",
		},
		"state of a newer driver": {
			reason: "an unknown state is in flight",
			seen:   seen{released(pb.State(99), v2, v2, v2)}, waits: "release r1",
		},
		"completed": {
			reason: "every group runs the template, and the release is over",
			seen:   seen{released(pb.State_STATE_PROMOTING, v2, v2, v1), released(pb.State_STATE_COMPLETED, v2, v2, v2)},
		},
		"completed, group not ready": {
			reason: "a group was lost after the promotion",
			seen: func() seen {
				c := released(pb.State_STATE_COMPLETED, v2, v2, v2)
				c.Groups[1].Ready = false
				return seen{c}
			}(), waits: "1 of 2 groups run template bbbb and are ready",
		},
		"completed, scaled up": {
			reason: "a group is missing",
			seen:   seen{released(pb.State_STATE_COMPLETED, v2, v2)}, waits: "1 of 2 groups",
		},
		"surge group": {
			reason: "LWS has more groups than requested",
			seen:   seen{status(pb.State_STATE_UNMANAGED, v2, 7, v2, v2, v2)}, waits: "3 of 3 groups",
		},
		"handed over": {
			reason: "the object is another one, whose generations count from 1",
			seen: func() seen {
				c := released(pb.State_STATE_COMPLETED, v2, v2, v2)
				c.Workload.Name, c.ObservedGeneration = "vllm-bbbb", 2
				return seen{c}
			}(),
		},
		"failed": {
			reason: "a user has to decide",
			seen:   seen{released(pb.State_STATE_FAILED, v2, v1, v1)}, code: exit.Failed,
		},
		"older release failed": {
			reason: "the release will follow the newer template",
			seen:   seen{released(pb.State_STATE_FAILED, v3, v1, v1)}, waits: "is failed",
		},
		"rolling back": {
			reason: "the end is recorded",
			seen:   seen{released(pb.State_STATE_UPGRADING, v2, v1, v1), released(pb.State_STATE_ROLLING_BACK, v2, v1, v1)}, code: exit.RolledBack,
		},
		"rolled back": {
			reason: "the template waits, but for a user",
			seen:   seen{released(pb.State_STATE_ROLLED_BACK, v2, v1, v1)}, code: exit.RolledBack,
		},
		"rolled back by a revert": {
			reason: "every group runs the template in the spec, which is not the one that was waited for",
			seen:   seen{released(pb.State_STATE_READY, v2, v1, v1), released(pb.State_STATE_ROLLED_BACK, v1, v1, v1)}, code: exit.RolledBack,
		},
		"reverted before": {
			reason: "the wait is for the revert, which rolled the release back",
			seen:   seen{released(pb.State_STATE_ROLLING_BACK, v1, v1, v1), released(pb.State_STATE_ROLLED_BACK, v1, v1, v1)},
		},
		"newer template": {
			reason: "a later template replaces that of the start",
			seen:   seen{released(pb.State_STATE_READY, v2, v1, v1), released(pb.State_STATE_COMPLETED, v3, v3, v3)},
		},
		"no groups": {
			reason: "no group runs another template",
			seen: func() seen {
				c := status(pb.State_STATE_HOLDING, v2, 7)
				c.Replicas = 0
				return seen{c}
			}(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &goal{object: "vllm", generation: 7}
			var waits string
			var err error
			for _, c := range test.seen {
				waits, err = g.judge(c)
			}
			if exit.Code(err) != test.code || (waits == "") != (test.waits == "") || !strings.Contains(waits, test.waits) {
				t.Errorf("waits for %q, %v, want %q, exit code %d: %s", waits, err, test.waits, test.code, test.reason)
			}
		})
	}
}
