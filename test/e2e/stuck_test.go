// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// A release without progress reports since when, the blocking group, and a remedy. Once that group is ready, the next broken
// group is reported after a deadline of its own; then the release continues.
//
// Proves (test): Safety rule 8: a deadline with the group and the remedy.
func TestStuck(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	noRestart := func(w *lws.LeaderWorkerSet) { w.Spec.LeaderWorkerTemplate.RestartPolicy = lws.NoneRestartPolicy }
	w := e.adopt(model("model", 4, 2, noRestart))
	w.edit(image("v2"), withBehavior(cluster.BehaviorImagePull))
	p := policy("50%", "100%")
	p.ProgressDeadline = seconds(5)
	w.initialize("r1", p)
	canary := w.upgrade("r1", 0).GetContext().GetCanaryWorkload()
	w.await("4 pods exist", func(*pb.BatchContext) bool { return len(w.podsOf(canary)) == 4 })
	for _, group := range []string{"0", "1"} {
		c := w.await("group "+group+" is reported as blocking", func(c *pb.BatchContext) bool {
			return c.GetState() == pb.State_STATE_FAILED && strings.Contains(c.GetMessage(), "; group "+group+": pod "+canary+"-"+group)
		})
		var row *pb.Group
		for _, g := range c.GetGroups() {
			if g.GetLeader() == canary+"-"+group {
				row = g
			}
		}
		if c.GetReason() != "ProgressDeadlineExceeded" || row.GetReady() || row.GetSince() == nil {
			t.Fatalf("%s\ngroup %v", show(c), row)
		}
		w.mustContain(c.GetMessage(), "no progress for 5s (since ", "ImagePullBackOff", ". Fix the image", "otherwise abort")
		if strings.Count(c.GetMessage(), "roup "+group) > 1 {
			t.Errorf("the group is named twice: %s", c.GetMessage())
		}
		if group == "0" { // Kubernetes counts further events of the reason, and keeps the note of the first
			e.eventually("an event reports it", func(ctx context.Context) error { return e.hasFailureEvent(ctx, "model", "; group 0: pod ") })
		}
		w.patchPods(canary, heal, map[string]int{"0": 0, "1": 1}[group])
	}
	w.awaitState(pb.State_STATE_READY)
	w.finalize("r1", rollback)
	w.mustBeIdle()
}

// hasFailureEvent returns nil if an event ReleaseFailed about a workload contains the words.
func (e *env) hasFailureEvent(ctx context.Context, name, words string) error {
	events, err := e.events(ctx, name)
	if err != nil {
		return err
	}
	for i := range events {
		if events[i].Reason == "ReleaseFailed" && strings.Contains(events[i].Note, words) {
			return nil
		}
	}
	return errors.New("no event ReleaseFailed contains " + words)
}
