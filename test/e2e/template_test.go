// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// groupsOf sets the number of pods of a group.
func groupsOf(size int32) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) { w.Spec.LeaderWorkerTemplate.Size = ptr.To(size) }
}

// claims gives each pod a volume of a size.
func claims(size string) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) {
		w.Spec.LeaderWorkerTemplate.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "weights"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: ptr.To("default"),
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
			},
		}}
	}
}

// awaitUnsafeEvent waits for the warning about a template that the hold does not cover.
func (w *workload) awaitUnsafeEvent(words ...string) {
	w.t.Helper()
	w.eventually("the event UnsafeTemplateChange", func(ctx context.Context) error {
		all, err := w.events(ctx, w.name)
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range all {
			if e.Reason != "UnsafeTemplateChange" {
				continue
			}
			notes = append(notes, e.Note)
			if e.Series != nil {
				return fmt.Errorf("the event repeats: %v", e.Series)
			}
		}
		if len(notes) != 1 {
			return fmt.Errorf("%d events: %q", len(notes), notes)
		}
		for _, word := range words {
			if !strings.Contains(notes[0], word) {
				return fmt.Errorf("the note lacks %q: %s", word, notes[0])
			}
		}
		return nil
	})
}

// deleteLeader deletes the leader of a group, and waits until it is recreated.
func (w *workload) deleteLeader(group int) {
	w.t.Helper()
	name := fmt.Sprintf("%s-%d", w.name, group)
	old := w.stablePods()[name]
	suite.Delete(w.t, w.kube.CoreV1().Pods(w.namespace), name)
	w.awaitObject("the leader of group "+name+" is recreated", func() bool {
		p, ok := w.stablePods()[name]
		return ok && p.UID != old.UID && podReady(&p)
	})
}

// A template with another size waits: a group that restarts is built from two revisions, and does not count as ready.
//
// Proves: Template changes that the hold does not cover: named, refused, groups of two revisions.
func TestTemplateSizeWaits(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2))
	w.edit(image("v2"), groupsOf(4))
	c := w.await("the status names the change", func(c *pb.BatchContext) bool { return c.GetReason() == "NewRevisionWaits" })
	w.mustContain(c.GetMessage(), "spec.leaderWorkerTemplate.size changes from 2 to 4", "3 workers instead of 1")
	assert.Equal(t, int32(2), c.GetStableReady(), "untouched groups: %s", show(c))
	w.awaitUnsafeEvent("size changes from 2 to 4")
	w.deleteLeader(1)
	w.awaitBuiltFromTwo(1, "restore the size")
	c = w.await("every pod exists", func(*pb.BatchContext) bool { return len(w.stablePods()) == 6 })
	g := c.GetGroups()
	assert.True(t, !g[1].GetReady() && g[1].GetPods() == 2 && g[0].GetReady() && c.GetStableReady() == 1, "after the restart: %s", show(c))
	w.edit(image("v1"), groupsOf(2))
	w.deleteLeader(1)
	c = w.await("the group is whole again", func(c *pb.BatchContext) bool { return c.GetStableReady() == 2 && c.GetReason() == "Held" })
	if strings.Contains(c.GetMessage(), "hold does not cover") || len(w.stablePods()) != 4 {
		t.Errorf("after the template is restored: %d pods, %s", len(w.stablePods()), show(c))
	}
	w.awaitUnsafeEvent()
}

// awaitBuiltFromTwo waits until a group is reported as built from two revisions.
func (w *workload) awaitBuiltFromTwo(group int, words ...string) {
	w.t.Helper()
	c := w.await("the group is built from two revisions", func(c *pb.BatchContext) bool {
		return len(c.GetGroups()) > group && c.GetGroups()[group].GetReason() == "BuiltFromTwoRevisions"
	})
	assert.False(w.t, c.GetGroups()[group].GetReady(), "the group counts as ready: %s", show(c))
	w.mustContain(c.GetGroups()[group].GetMessage(), words...)
}

// A release ends by the old template: the driver restarts a group that was built from two revisions.
//
// Proves: Template changes that the hold does not cover: named, refused, groups of two revisions.
func TestTemplateSizeRestored(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2))
	w.observer.waive(ruleStableUntouched, ruleAvailable) // the test itself deletes a leader
	w.edit(image("v2"), groupsOf(3))
	w.initialize("r1", policy("50%", "100%"))
	w.upgrade("r1", 0)
	w.deleteLeader(1)
	w.awaitBuiltFromTwo(1, "have 2 pods", "built this one for 3")
	w.edit(image("v1"), groupsOf(2))
	w.await("the group is restarted after the rollback", func(c *pb.BatchContext) bool {
		return c.GetState() == pb.State_STATE_ROLLED_BACK && c.GetStableReady() == 2 && len(w.stablePods()) == 4
	})
	w.mustBeIdle()
	w.mustRun("v1")
}

// Groups of another size beside the stable ones work to the end.
//
// Proves: Template changes that the hold does not cover: named, refused, groups of two revisions.
func TestTemplateSizeCanary(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, change := range []struct {
		name     string
		from, to int32
	}{{"grows", 2, 3}, {"shrinks", 3, 1}, {"gets-workers", 1, 2}} {
		t.Run(change.name, func(t *testing.T) {
			t.Parallel()
			w := e.in(t).adopt(model(change.name, 2, change.from))
			w.edit(image("v2"), groupsOf(change.to))
			r := w.initialize("r1", policy("50%", "100%"))
			w.mustContain(warning(r, "UnsafeTemplateChange"), fmt.Sprintf("size changes from %d to %d", change.from, change.to))
			for b := range int32(2) {
				c := w.upgrade("r1", b).GetContext()
				require.True(t, c.GetState() == pb.State_STATE_READY && c.GetStableReady() == 2, "batch %d: %s", b, show(c))
				w.mustContain(c.GetMessage(), "hold does not cover")
			}
			c := w.finalize("r1", promote).GetContext()
			assert.True(t, c.GetState() == pb.State_STATE_COMPLETED && !strings.Contains(c.GetMessage(), "hold does not cover"),
				"after the promotion: %s", show(c))
			w.mustBeIdle()
			w.mustRun("v2")
			assert.Equal(t, int(2*change.to), len(w.stablePods()), "pods, want %d", 2*change.to)
		})
	}
}

// In place, old and new groups of different sizes can't exist beside each other.
//
// Proves: Template changes that the hold does not cover: named, refused, groups of two revisions.
func TestTemplateSizeInPlace(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2))
	w.edit(image("v2"), groupsOf(3))
	w.await("the template is recorded", func(c *pb.BatchContext) bool { return c.GetReason() == "NewRevisionWaits" })
	_, err := w.tryInitialize("r1", inPlace("50%", "100%"))
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "size", "from 2 to 3", "STYLE_CANARY")
	w.edit(groupsOf(2))
	w.await("the size is restored", func(c *pb.BatchContext) bool { return !strings.Contains(c.GetMessage(), "hold does not cover") })
	w.initialize("r1", inPlace("50%", "100%"))
	w.upgrade("r1", 0)
	w.edit(image("v3"), groupsOf(3)) // in the middle of a release
	c := w.awaitState(pb.State_STATE_FAILED)
	assert.Equal(t, "TemplateUnsupported", c.GetReason(), "another size in mid-release: %s", show(c))
	w.edit(image("v2"), groupsOf(2))
	w.upgrade("r1", 1)
	w.finalize("r1", promote)
	w.mustBeIdle()
	w.mustRun("v2")
}

// LWS accepts other volumeClaimTemplates and never applies them.
//
// Proves: Template changes that the hold does not cover: named, refused, groups of two revisions.
func TestTemplateVolumeClaims(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.prepareVolumes(12)
	w := e.adopt(model("model", 2, 2, claims("10Gi")))
	w.edit(image("v2"), claims("20Gi"))
	c := w.await("the status names the change", func(c *pb.BatchContext) bool { return c.GetReason() == "TemplateUnsupported" })
	w.mustContain(c.GetMessage(), "volumeClaimTemplates", "from weights 10Gi", "to weights 20Gi", "never applies", "Restore the old")
	w.awaitUnsafeEvent("volumeClaimTemplates")
	for _, s := range []style{canaryStyle, partitionStyle, blueGreenStyle} {
		_, err := w.tryInitialize("r1", s.policy(policy("50%", "100%")))
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "volumeClaimTemplates", "another name")
	}
	s := w.get()
	assert.NotEqual(t, s.Generation, s.Status.ObservedGeneration, "LWS has observed the template: it need not be refused any more")
	w.edit(claims("10Gi"))
	w.awaitReady()
	w.release("r1", policy("50%", "100%"))
	w.mustRun("v2")
}
