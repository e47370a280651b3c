// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// leaderOf3 is the leader pod of group 3.
func leaderOf3(revision string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: lwstest.VLLM.Namespace, Name: lwstest.VLLM.Name + "-3", UID: uid, ResourceVersion: "1",
		Labels: map[string]string{
			lws.SetNameLabelKey: lwstest.VLLM.Name, lws.GroupIndexLabelKey: "3", lws.WorkerIndexLabelKey: "0", lws.RevisionKey: revision,
		},
	}}
}

// workerOf3 is a worker pod of group 3.
func workerOf3() *corev1.Pod {
	p := leaderOf3("new", "worker")
	p.Name, p.Labels[lws.WorkerIndexLabelKey] = lwstest.VLLM.Name+"-3-1", "1"
	return p
}

// ready makes a pod of a group of two ready.
func ready(p *corev1.Pod) *corev1.Pod {
	p.Annotations = map[string]string{lws.SizeAnnotationKey: "2"}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	return p
}

// losePod takes it away again.
func (b *fixture) losePod(name string) {
	b.t.Helper()
	require.NoError(b.t, b.observer.Caches.Pods.GetIndexer().Delete(b.observer.Caches.Pod(types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: name})))
	b.observer.Caches.Groups.Invalidate(lwstest.VLLM, "3")
	b.observer.Changes.Notify(lwstest.VLLM)
}

// group3 returns what the planner knows of the group.
func (b *fixture) group3() plan.Group {
	b.t.Helper()
	for _, g := range b.look().Stable.Groups {
		if g.Index == 3 {
			return g
		}
	}
	b.t.Fatal("there is no group 3")
	return plan.Group{}
}

// A group is restarted by deleting the observed leader, and each restart at the same revision is counted.
func TestRestartGroup(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.RollingBack))
	const leader = "vllm-3"
	var preconditions []metav1.Preconditions
	fakes.React(&b.Core.Fake, "delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		d, _ := a.(clienttesting.DeleteActionImpl)
		preconditions = append(preconditions, *d.DeleteOptions.Preconditions)
		b.losePod(leader)
		return true, nil, nil
	})
	for i, uid := range []types.UID{"first", "second"} {
		pod := leaderOf3("new", uid)
		pod.ResourceVersion = "7" + string(uid)
		b.showPod(pod)
		assert.Equal(t, i, b.group3().Restarts, "restarts")
		wrote, err := b.Apply(t.Context(), b.look(), plan.RestartGroup{Leader: leader})
		require.True(t, wrote && err == nil, "restart: wrote %t, %v", wrote, err)
		if p := preconditions[i]; *p.UID != uid || *p.ResourceVersion != pod.ResourceVersion {
			t.Errorf("pod %s at %s was to be deleted, want %s at %s", *p.UID, *p.ResourceVersion, uid, pod.ResourceVersion)
		}
	}
	b.showPod(leaderOf3("old", "third"))
	g := b.group3()
	assert.True(t, g.Restarts == 0 && g.Revision == "old", "the group came back at %s with %d restarts in vain", g.Revision, g.Restarts)
	b.showPod(leaderOf3("new", "fourth"))
	got := b.group3().Restarts
	assert.Zero(t, got, "%d restarts of an earlier time count", got)
}

// A leader that changed meanwhile stays: the next observation decides whether to delete it.
func TestRestartGroupLate(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.RollingBack))
	pod := leaderOf3("new", "first")
	pod.ResourceVersion = "7"
	b.showPod(pod)
	fakes.React(&b.Core.Fake, "delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		now := leaderOf3("new", "first")
		now.ResourceVersion = "8"
		b.showPod(now)
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, pod.Name, errors.New("it is at 8"))
	})
	wrote, err := b.Apply(t.Context(), b.look(), plan.RestartGroup{Leader: pod.Name})
	assert.True(t, !wrote && err == nil, "wrote %t, %v", wrote, err)
	n := b.group3().Restarts
	assert.Zero(t, n, "%d restarts are counted", n)
}

// A worker that keeps its group from being ready is deleted before the leader, at the version that was observed: if it is ready by
// now, the group stays. A worker that is recreated at once is not deleted again.
func TestRestartGroupUnreadyWorker(t *testing.T) {
	for _, late := range []bool{false, true} {
		b := newFixture(t, lwstest.InPhase(t, record.RollingBack))
		leader, worker := ready(leaderOf3("new", "first")), workerOf3()
		worker.ResourceVersion = "7"
		b.showPod(leader)
		b.showPod(worker)
		var deleted []string
		fakes.React(&b.Core.Fake, "delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			d, _ := a.(clienttesting.DeleteActionImpl)
			deleted = append(deleted, d.Name+" at "+ptr.Deref(d.DeleteOptions.Preconditions.ResourceVersion, "any"))
			now := worker.DeepCopy()
			now.ResourceVersion = "8"
			switch {
			case late:
				now.Status = leader.Status
				b.showPod(now)
				return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, d.Name, errors.New("it is at 8"))
			case d.Name == worker.Name:
				now.UID = "recreated"
				b.showPod(now)
			default:
				b.losePod(d.Name)
			}
			return true, nil, nil
		})
		wrote, err := b.Apply(t.Context(), b.look(), plan.RestartGroup{Leader: leader.Name})
		assert.True(t, wrote != late && err == nil, "late %t: wrote %t, %v", late, wrote, err)
		want := []string{"vllm-3-1 at 7", "vllm-3 at any"}
		if late {
			want = want[:1]
		}
		assert.True(t, slices.Equal(deleted, want), "late %t: deleted %v, want %v", late, deleted, want)
	}
}

// The leader of a whole group finishes its requests with its workers. The workers of another group are deleted before its leader is
// gone, so that none of them joins the next leader.
func TestRestartGroupDeletesWorkersFirst(t *testing.T) {
	leader := func() *corev1.Pod { return leaderOf3("new", "leader") }
	terminating := workerOf3()
	terminating.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon}
	for name, test := range map[string]struct {
		pods []*corev1.Pod
		want metav1.DeletionPropagation
	}{
		"whole":              {[]*corev1.Pod{ready(leader()), ready(workerOf3())}, metav1.DeletePropagationBackground},
		"leader unready":     {[]*corev1.Pod{leader(), ready(workerOf3())}, metav1.DeletePropagationForeground},
		"worker unready":     {[]*corev1.Pod{ready(leader()), workerOf3()}, metav1.DeletePropagationForeground},
		"worker missing":     {[]*corev1.Pod{ready(leader())}, metav1.DeletePropagationForeground},
		"worker terminating": {[]*corev1.Pod{ready(leader()), ready(terminating)}, metav1.DeletePropagationForeground},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, lwstest.InPhase(t, record.RollingBack))
			for _, pod := range test.pods {
				b.showPod(pod)
			}
			var got metav1.DeletionPropagation
			fakes.React(&b.Core.Fake, "delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				d, _ := a.(clienttesting.DeleteActionImpl)
				got = ptr.Deref(d.DeleteOptions.PropagationPolicy, "none")
				b.losePod(d.Name)
				return true, nil, nil
			})
			wrote, err := b.Apply(t.Context(), b.look(), plan.RestartGroup{Leader: "vllm-3"})
			require.True(t, wrote && err == nil, "wrote %t, %v", wrote, err)
			assert.Equal(t, test.want, got, "the leader is deleted with propagation")
		})
	}
}

// A leader that is being deleted is not deleted again.
func TestRestartGroupOnce(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.RollingBack))
	pod := leaderOf3("new", "first")
	pod.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon}
	b.showPod(pod)
	assert.True(t, b.group3().Terminating, "a leader that is being deleted does not look so")
	for _, name := range []string{pod.Name, "vllm-7"} {
		wrote, err := b.Apply(t.Context(), b.look(), plan.RestartGroup{Leader: name})
		assert.True(t, !wrote && err == nil, "%s: wrote %t, %v", name, wrote, err)
	}
	if n := len(b.Core.Actions()); n > 0 {
		t.Errorf("%d requests: %v", n, b.Core.Actions())
	}
}

// The stable template is saved from LWS's own revision in the very write that needs it, and put back as it was.
func TestStableTemplateSavedAndRestored(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	old := lwstest.WithImage("example.com/model:old")
	b := newFixture(t, stable)
	s := b.look()
	save := plan.SetStable{Record: *s.Record, Rolling: ptr.To(record.Native(record.Hold())), SaveTemplate: true}
	_, err := b.Apply(t.Context(), s, save)
	lwstest.ErrorContains(t, observe.ContractError(err), "ControllerRevision", "old", "roll back to") // it would be saved nowhere
	assert.Empty(t, b.Writes(), "writes")
	b.run()
	// LeaderWorkerSet has deleted its own revision, and the history has the template.
	kept := lwstest.HistoryRevision(t, plan.Entry{Revision: "old", Number: 1, At: lwstest.Noon}, "example.com/model:old")
	require.NoError(t, b.Core.Tracker().Add(kept))
	b.eventually("the history is seen", func() bool { return b.observer.History.Find(s, "old") != nil })
	rec := *s.Record
	require.NoError(t, b.saveTemplate(t.Context(), s, &rec))
	assert.True(t, observe.SameTemplate(record.TemplateOf(old), *rec.Release.StableTemplate), "from the history")
	require.NoError(t, b.Core.Tracker().Add(lwstest.Revision(t, old, "old")))
	b.eventually("the revision is seen", func() bool { _, err := b.observer.Caches.Template(stable, "old"); return err == nil })
	rec = *s.Record
	require.NoError(t, b.saveTemplate(t.Context(), s, &rec))
	assert.Nil(t, s.Record.Release.StableTemplate, "what was observed has changed")
	p := newPatch(stable, record.RecordAnnotation)
	p.setTemplate(*rec.Release.StableTemplate)
	if !observe.SameTemplate(record.TemplateOf(old), *rec.Release.StableTemplate) || len(p.changes) == 0 || p.changes[0].Path != "/spec/leaderWorkerTemplate" {
		t.Errorf("restored is another template, by %+v", p.changes)
	}
}
