// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// withBehavior sets one of the cluster's Behavior constants on the pods of the template.
func withBehavior(behavior string) func(*lws.LeaderWorkerSet) {
	return annotated(cluster.AnnotationBehavior, behavior)
}

// heal is the annotation patch that removes a behavior from pods, so that they become ready.
var heal = map[string]any{cluster.AnnotationBehavior: nil}

// Groups never become ready: after the deadline the release fails with the group and the reason, and the host decides.
//
// Proves (test): Safety rule 8: a deadline with the group and the remedy.
func TestCanaryFailures(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	noRestart := func(w *lws.LeaderWorkerSet) { w.Spec.LeaderWorkerTemplate.RestartPolicy = lws.NoneRestartPolicy }
	for _, test := range []struct {
		name, reason string
		change       func(*lws.LeaderWorkerSet)
		words        []string
	}{
		{"never-ready", "", withBehavior(cluster.BehaviorNeverReady), nil},
		{"image-pull", "ImagePullBackOff", withBehavior(cluster.BehaviorImagePull), []string{"ImagePullBackOff", "example.com/model:v2", "no progress for 3s (since ", ". Fix the image", "otherwise abort"}},
		{"crash-loop", "CrashLoopBackOff", func(w *lws.LeaderWorkerSet) {
			withBehavior(cluster.BehaviorCrash)(w)
			annotated(cluster.AnnotationPeriod, "200ms")(w)
		}, []string{"CrashLoopBackOff"}},
		{"unschedulable", "Unschedulable", func(w *lws.LeaderWorkerSet) {
			r := &w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Resources
			r.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("100000")}
		}, []string{"nvidia.com/gpu"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := e.in(t).adopt(model(test.name, 2, 2, noRestart))
			before := w.stablePods()
			w.edit(image("v2"), test.change)
			p := policy("50%", "100%")
			p.ProgressDeadline = seconds(3)
			w.initialize("r1", p)
			start := time.Now()
			c := w.upgrade("r1", 0).GetContext()
			if took := time.Since(start); c.GetState() != pb.State_STATE_FAILED || c.GetReason() != "ProgressDeadlineExceeded" || took < 2900*time.Millisecond {
				t.Errorf("after %s: %s", took, show(c))
			}
			words := append(test.words, "group 0", "pod "+c.GetCanaryWorkload()+"-0")
			c = w.await(fmt.Sprintf("the message contains %q", words), func(c *pb.BatchContext) bool {
				return c.GetState() == pb.State_STATE_FAILED &&
					!slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(c.GetMessage(), word) })
			})
			rows := c.GetGroups()
			i := slices.IndexFunc(rows, func(g *pb.Group) bool { return g.GetRole() == pb.GroupRole_GROUP_ROLE_CANARY })
			if i < 0 || rows[i].GetReady() || rows[i].GetPod() == "" || (test.reason != "" && rows[i].GetReason() != test.reason) {
				t.Errorf("groups %v", rows)
			}
			w.mustHaveEvents("ReleaseFailed")
			w.finalize("r1", rollback)
			w.sameGroups(before)
			w.mustBeIdle()
		})
	}
}
