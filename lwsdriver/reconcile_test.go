// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// withoutWaiting is a context for work whose caches nobody updates: a write goes through and is not waited for.
func withoutWaiting(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), 50*time.Millisecond)
}

// driftedHold is an adopted workload that the driver has something to write to.
func driftedHold(t *testing.T) *lws.LeaderWorkerSet {
	t.Helper()
	return withRecord(t, unrecorded(), record.Record{Saved: record.Native(record.Hold())})
}

// A sweep that fails is tried again, later each time.
func TestSweepSlowsDown(t *testing.T) {
	b := newBed(t, canaryOf(t, stableWorkload()))
	b.failPatches(func() error { return apierrors.NewInternalError(errors.New("no leader")) })
	for want := 1; want <= 3; want++ {
		b.engine.workOn(t.Context(), vllm)
		if got := b.engine.queue.NumRequeues(vllm); got != want {
			t.Fatalf("%d tries are counted after %d failed: the next one does not wait longer", got, want)
		}
	}
	b.failPatches(func() error { return apierrors.NewNotFound(lws.Resource("leaderworkersets"), "vllm-new") })
	if err := b.engine.Observer.Caches.Workloads.GetIndexer().Delete(canaryOf(t, stableWorkload())); err != nil {
		t.Fatal(err)
	}
	b.engine.workOn(t.Context(), vllm)
	if got := b.engine.queue.NumRequeues(vllm); got != 0 || b.engine.errors.get(vllm) != nil {
		t.Errorf("%d tries and %v are remembered of a workload that is gone", got, b.engine.errors.get(vllm))
	}
}

// A defect that one workload meets is that workload's error, and is tried again.
func TestPanicIsOneWorkloads(t *testing.T) {
	b := newBed(t, driftedHold(t))
	b.failPatches(func() error { panic("a defect") })
	for range 2 {
		b.engine.workOn(t.Context(), vllm)
	}
	if got := b.engine.queue.NumRequeues(vllm); got != 2 {
		t.Errorf("%d tries are counted, want 2", got)
	}
	if got := drivererr.Reason(b.engine.errors.get(vllm)); got != pb.ErrorReason_ERROR_REASON_INTERNAL {
		t.Errorf("trouble is %v, want INTERNAL", b.engine.errors.get(vllm))
	}
	c, _, err := b.contextOf(vllm, false)
	if err != nil || c.GetState() != pb.State_STATE_FAILED || c.GetReason() != "Internal" {
		t.Errorf("the context is %v, %v", c, err)
	}
	if unlock, err := b.engine.locks.lock(t.Context(), vllm); err != nil {
		t.Error(err)
	} else {
		unlock()
	}
}

// A lost race is nobody's business, unless every write is answered with one.
func TestConflictsInARow(t *testing.T) {
	b := newBed(t, driftedHold(t))
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "leaderworkersets"}, "vllm", errors.New("changed"))
	b.failPatches(func() error { return conflict })
	message := func() string {
		c, _, err := b.contextOf(vllm, false)
		if err != nil || c.GetState() == pb.State_STATE_FAILED {
			t.Fatalf("the context is %v, %v", c, err)
		}
		return c.GetMessage()
	}
	for try := 1; try <= conflictReportThreshold+1; try++ {
		b.engine.workOn(t.Context(), vllm)
		if told := strings.Contains(message(), "will be tried again"); told != (try >= conflictReportThreshold) {
			t.Errorf("after %d conflicts in a row the context says %q", try, message())
		}
	}
	b.engine.errors.set(vllm, nil)
	b.engine.workOn(t.Context(), vllm)
	if strings.Contains(message(), "will be tried again") {
		t.Error("a first conflict after a success counts as one more")
	}
}

// Nothing is remembered of a workload and of what was added to it once they and their pods are gone, in whatever order
// they go.
func TestNothingIsRemembered(t *testing.T) {
	for _, tt := range []struct {
		name      string
		podsFirst bool
		limit     func(*scope)
	}{
		{"pods last", false, func(*scope) {}},
		{"pods first", true, func(*scope) {}},
		{"pods last, one workload", false, func(s *scope) { s.workload = vllm }},
		{"pods first, one workload", true, func(s *scope) { s.workload = vllm }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stable := inPhase(t, record.Progressing)
			b := newBed(t, stable, canaryOf(t, stable))
			tt.limit(&b.engine.locks)
			b.run()
			b.eventually("the driver serves", b.Synced)
			pods := b.core.CoreV1().Pods(vllm.Namespace)
			names := []string{"vllm-1", "vllm-1-1", "vllm-new-1"}
			for _, name := range names {
				pod := testPod(name, func(p *corev1.Pod) {
					if strings.HasPrefix(name, "vllm-new") {
						p.Labels[lws.SetNameLabelKey] = "vllm-new"
					}
				})
				if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			b.eventually("the pods are seen", func() bool { return len(b.engine.Observer.Caches.Pods.GetIndexer().List()) == len(names) })
			if _, _, err := b.contextOf(vllm, true); err != nil {
				t.Fatal(err)
			}
			b.engine.errors.set(vllm, errors.New("something"))
			b.engine.events.exchange(vllm, lastEvent{release: "r1"})
			steps := []func(){
				func() {
					for _, name := range []string{"vllm", "vllm-new"} {
						err := b.sets.Tracker().Delete(lws.GroupVersion.WithResource("leaderworkersets"), vllm.Namespace, name)
						if err != nil && !apierrors.IsNotFound(err) {
							t.Fatal(err)
						}
					}
					b.eventually("the workloads are gone", func() bool { return len(b.engine.Observer.Caches.Workloads.GetIndexer().List()) == 0 })
				},
				func() {
					for _, name := range names {
						if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
							t.Fatal(err)
						}
					}
					b.eventually("the pods are gone", func() bool { return len(b.engine.Observer.Caches.Pods.GetIndexer().List()) == 0 })
				},
			}
			if tt.podsFirst {
				slices.Reverse(steps)
			}
			for _, step := range steps {
				step()
			}
			b.eventually("all is forgotten", func() bool { return b.remembered() == 0 })
		})
	}
}

// remembered counts what the driver keeps per workload.
func (b *bed) remembered() int {
	b.engine.Observer.Caches.Groups.mu.Lock()
	defer b.engine.Observer.Caches.Groups.mu.Unlock()
	b.engine.Observer.mu.Lock()
	defer b.engine.Observer.mu.Unlock()
	b.engine.events.mu.Lock()
	defer b.engine.events.mu.Unlock()
	b.engine.errors.mu.Lock()
	defer b.engine.errors.mu.Unlock()
	b.engine.Observer.Changes.mu.Lock()
	defer b.engine.Observer.Changes.mu.Unlock()
	return len(b.engine.Observer.Caches.Groups.sets) + len(b.engine.Observer.digests) + len(b.engine.events.last) + len(b.engine.errors.all) + len(b.engine.Observer.Changes.waiters)
}

// A look that was under way while the workload went keeps nothing either.
func TestLateDigestIsForgotten(t *testing.T) {
	b := newBed(t)
	if _, err := b.engine.Observer.digest(stableWorkload()); err != nil {
		t.Fatal(err)
	}
	if b.remembered() != 0 {
		t.Error("the digest of a workload that is not there is kept")
	}
}
