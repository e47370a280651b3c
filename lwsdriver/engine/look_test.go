// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
)

// A look is kept until a change of its workload is notified, a pass ends, or the time comes at which the decision may change.
func TestLookIsKept(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*fixture, time.Duration)
		kept   bool
	}{
		{"nothing", func(*fixture, time.Duration) {}, true},
		{"just before the recheck", func(b *fixture, recheck time.Duration) { b.at(recheck - 1) }, true},
		{"the recheck", func(b *fixture, recheck time.Duration) { b.at(recheck) }, false},
		{"a change", func(b *fixture, _ time.Duration) { b.Observer.Notify(lwstest.VLLM) }, false},
		{"a change of another workload", func(b *fixture, _ time.Duration) { b.Observer.Notify(types.NamespacedName{Name: "other"}) }, true},
		{"a pass", func(b *fixture, _ time.Duration) { _, _, _ = b.Reconcile(t.Context(), lwstest.VLLM) }, false},
		{"it was deleted", func(b *fixture, _ time.Duration) { b.forget(lwstest.VLLM) }, false},
		{"a cache is stale", func(b *fixture, _ time.Duration) { b.Observer.Freshness = stale(b.t) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFixture(t, lwstest.InPhase(t, record.Progressing))
			before, d, err := b.Look(lwstest.VLLM)
			require.True(t, err == nil && d.Recheck != 0, "%+v, %v", d, err)
			tt.change(b, d.Recheck)
			after, _, err := b.Look(lwstest.VLLM)
			assert.True(t, err == nil && (after == before) == tt.kept, "kept %t, %v", after == before, err)
		})
	}
}

// refusing is a client whose watch the API server refuses.
type refusing struct{}

func (refusing) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (refusing) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return nil, apierrors.NewTooManyRequestsError("later")
}

func (refusing) IsWatchListSemanticsUnSupported() bool { return true }

// stale returns the Freshness of a cache that the API server does not confirm.
func stale(t testing.TB) *informer.Freshness {
	t.Helper()
	source := informer.NewSource(corev1.SchemeGroupVersion.WithResource("pods"), refusing{}, refusing{}, "")
	go source.Informer(&corev1.Pod{}, nil).RunWithContext(t.Context())
	f := informer.NewFreshness(func() {}, source)
	for len(f.Of()) == 0 {
		runtime.Gosched()
	}
	return f
}

// at sets the clock to so long after noon.
func (b *fixture) at(after time.Duration) {
	b.config.Now = func() time.Time { return lwstest.Noon.Add(after) }
}

// What is observed while a change comes may be from before it, so it is not kept.
func TestLookDuringChangeIsNotKept(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.Progressing))
	b.config.Decided = func(plan.Observation, plan.Intent, plan.Decision, error) { b.Observer.Notify(lwstest.VLLM) }
	before, _, _ := b.Look(lwstest.VLLM)
	after, _, err := b.Look(lwstest.VLLM)
	assert.True(t, err == nil && after != before, "kept %t, %v", after == before, err)
}

// A decision that depends on what other workloads become is made anew each time.
func TestLookThatDependsOnOthersIsNotKept(t *testing.T) {
	rec, err := record.DecodeRecord(lwstest.InPhase(t, record.Promoting).Annotations[record.RecordAnnotation])
	require.NoError(t, err)
	rec.Release.Phase, rec.Release.Successor, rec.Release.Groups = record.HandingOver, "vllm-new", 4
	b := newFixture(t, lwstest.WithRecord(t, lwstest.InPhase(t, record.Promoting), *rec))
	before, _, _ := b.Look(lwstest.VLLM)
	after, _, err := b.Look(lwstest.VLLM)
	assert.True(t, err == nil && after != before, "kept %t, %v", after == before, err)
}
