// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
)

// groupFixture feeds pods to groups as the informer would.
type groupFixture struct {
	t *testing.T
	Groups
	store store
}

func newGroupFixture(t *testing.T) *groupFixture {
	t.Helper()
	b := &groupFixture{t: t, store: store{cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{podGroupIndex: informer.Index((*Pod).groupKeys)})}}
	b.pods = b.store
	return b
}

// store is a cache without an informer.
type store struct{ cache.Indexer }

func (s store) GetIndexer() cache.Indexer { return s.Indexer }

func (b *groupFixture) put(p *corev1.Pod) {
	b.t.Helper()
	v := NewPod(p)
	if err := b.store.Update(v); err != nil {
		b.t.Fatal(err)
	}
	b.Invalidate(v.Workload(), v.Group)
}

func (b *groupFixture) drop(p *corev1.Pod) {
	b.t.Helper()
	v := NewPod(p)
	if err := b.store.Delete(v); err != nil {
		b.t.Fatal(err)
	}
	b.Invalidate(v.Workload(), v.Group)
}

// wanted are all groups, missing ones included.
func (b *groupFixture) wanted(replicas, size int, sizes map[string]int, now time.Time, minReady time.Duration) []plan.Group {
	w := plan.Workload{Name: "vllm", Replicas: replicas, Size: size, Groups: b.of(lwstest.VLLM, replicas, size, sizes, now, minReady)}
	var all []plan.Group
	for g, n := range w.All() {
		for i := range n {
			if i > 0 {
				g = plan.MissingGroup("vllm", g.Index+1, size)
			}
			all = append(all, g)
		}
	}
	return all
}

// group1 is group 1 of two, as seen after a while, for a workload whose spec says size 9: the pods say 3.
func (b *groupFixture) group1(after, minReady time.Duration) plan.Group {
	b.t.Helper()
	all := b.wanted(2, 9, nil, lwstest.Noon.Add(after), minReady)
	if len(all) != 2 || all[0].Index != 0 || all[1].Index != 1 {
		b.t.Fatalf("groups %+v, want 0 and 1", all)
	}
	return all[1]
}

func TestGroupIsReadyAsAWhole(t *testing.T) {
	b := newGroupFixture(t)
	if g := b.group1(0, 0); g.Ready || g.Revision != "" || g.Reason != "PodMissing" || g.Pod != "vllm-1" {
		t.Errorf("a group without pods is %+v", g)
	}
	b.put(lwstest.Pod("vllm-1"))
	b.put(lwstest.Pod("vllm-1-1"))
	if g := b.group1(0, 0); g.Ready || g.Reason != "PodMissing" || g.ReadyPods != 2 || g.Pods != 3 {
		t.Errorf("a group with a worker missing is %+v", g)
	}
	b.put(lwstest.Pod("vllm-1-2", lwstest.Unready))
	if g := b.group1(0, 0); g.Ready || g.Pod != "vllm-1-2" || g.Reason != "NotReady" {
		t.Errorf("a group with an unready worker is %+v", g)
	}
	later := metav1.NewTime(lwstest.Noon.Add(5 * time.Second))
	b.put(lwstest.Pod("vllm-1-2", func(p *corev1.Pod) { p.Status.Conditions[1].LastTransitionTime = later }))
	if g := b.group1(time.Minute, 0); !g.Ready || g.Revision != "r1" || !g.ReadySince.Equal(later.Time) || g.Reason != "" {
		t.Errorf("a whole group is %+v, want ready since the last of its pods", g)
	}
	b.put(lwstest.Pod("vllm-1-2", func(p *corev1.Pod) { p.Labels[lws.RevisionKey] = "r2" }))
	if g := b.group1(time.Minute, 0); g.Ready || g.Reason != "MixedRevisions" {
		t.Errorf("a group at two revisions is %+v", g)
	}
	older := func(by time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.CreationTimestamp.Time = p.CreationTimestamp.Add(-by) }
	}
	b.put(lwstest.Pod("vllm-1-2", older(5*time.Second)))
	if g := b.group1(time.Minute, 0); !g.Ready {
		t.Errorf("a group of which one pod was created by an API server whose clock is late is %+v", g)
	}
	b.put(lwstest.Pod("vllm-1-2", older(6*time.Second)))
	if g := b.group1(time.Minute, 0); g.Ready || g.Pod != "vllm-1-2" || g.Reason != plan.ReasonWorkerLeftOver {
		t.Errorf("a group with a worker of an earlier leader is %+v", g)
	}
	b.drop(lwstest.Pod("vllm-1"))
	if g := b.group1(time.Minute, 0); g.Ready || g.Revision != "" || g.Reason != "LeaderMissing" {
		t.Errorf("a group without its leader is %+v", g)
	}
}

// A leader that is deleted in the foreground exists until its workers are gone: once it has ended, they keep the group.
func TestLeaderWaitsForWorkers(t *testing.T) {
	b := newGroupFixture(t)
	terminating := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon} }
	runs := func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	b.put(lwstest.Pod("vllm-1-1"))
	b.put(lwstest.Pod("vllm-1-2", terminating))
	for _, step := range []struct {
		change *corev1.Pod
		want   string
	}{
		{lwstest.Pod("vllm-1", terminating, runs), "vllm-1"},
		{lwstest.Pod("vllm-1", terminating, runs, ended), "vllm-1-2"},
	} {
		b.put(step.change)
		if g := b.group1(0, 0); !g.Terminating || g.Pod != step.want || g.Reason != "Terminating" {
			t.Errorf("the group is %+v, want it kept by %s", g, step.want)
		}
	}
	b.drop(lwstest.Pod("vllm-1-2"))
	if g := b.group1(0, 0); g.Pod != "vllm-1" {
		t.Errorf("without a worker that is being deleted the group is %+v, want it kept by vllm-1", g)
	}
}

// LWS recreates a group whose container has failed, and its new pods don't show why.
func TestExitOutlivesPods(t *testing.T) {
	b := newGroupFixture(t)
	failed := func(at time.Duration, revision string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			lwstest.Unready(p)
			p.Labels[lws.RevisionKey] = revision
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "server", LastTerminationState: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: metav1.NewTime(lwstest.Noon.Add(at))},
			}}}
		}
	}
	const want = "; before, container server of vllm-1-1: exit code 137 (OOMKilled)"
	b.whole(0)
	b.put(lwstest.Pod("vllm-1-1", failed(time.Second, "r1")))
	if g := b.group1(2*time.Second, 0); !strings.HasSuffix(g.Message, want) {
		t.Errorf("after the failure: %q", g.Message)
	}
	b.put(lwstest.Pod("vllm-1-1", lwstest.Unready))
	if g := b.group1(3*time.Second, 0); !strings.HasSuffix(g.Message, want) || strings.Count(g.Message, exitCode) != 1 {
		t.Errorf("once the pod is replaced: %q", g.Message)
	}
	b.put(lwstest.Pod("vllm-1-1", lwstest.Waiting("CrashLoopBackOff", "back-off"), func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
	}))
	if g := b.group1(4*time.Second, 0); strings.Count(g.Message, exitCode) != 1 {
		t.Errorf("while the pod itself says so: %q", g.Message)
	}
	b.whole(4 * time.Second)
	b.group1(time.Minute, 0)
	b.put(lwstest.Pod("vllm-1-1", failed(time.Second, "r1"), unreadySince(2*time.Minute)))
	if g := b.group1(2*time.Minute, 0); g.Ready || strings.Contains(g.Message, exitCode) {
		t.Errorf("lost again, after it had recovered: %q", g.Message)
	}
	b.put(lwstest.Pod("vllm-1-1", failed(2*time.Minute, "r0")))
	b.group1(2*time.Minute, 0)
	b.put(lwstest.Pod("vllm-1-1", lwstest.Unready))
	if g := b.group1(2*time.Minute, 0); strings.Contains(g.Message, exitCode) {
		t.Errorf("of a pod at another revision: %q", g.Message)
	}
}

func TestFlappingGroupKeepsHistory(t *testing.T) {
	b := newGroupFixture(t)
	const minReady = 10 * time.Second
	b.whole(0)
	if g := b.group1(9*time.Second, minReady); !g.FirstReady.IsZero() {
		t.Errorf("first ready at %s before minReady had passed", g.FirstReady)
	}
	want := lwstest.Noon.Add(minReady)
	if g := b.group1(11*time.Second, minReady); !g.FirstReady.Equal(want) {
		t.Errorf("first ready at %s, want %s", g.FirstReady, want)
	}
	b.put(lwstest.Pod("vllm-1-1", lwstest.Unready))
	b.drop(lwstest.Pod("vllm-1"))
	b.group1(20*time.Second, minReady)
	b.whole(30 * time.Second)
	if g := b.group1(time.Minute, minReady); !g.FirstReady.Equal(want) {
		t.Errorf("first ready at %s after flapping and losing its leader, want %s", g.FirstReady, want)
	}
	b.whole(time.Minute, func(p *corev1.Pod) { p.Labels[lws.RevisionKey] = "r2" })
	if g := b.group1(2*time.Minute, minReady); g.Revision != "r2" || !g.FirstReady.Equal(lwstest.Noon.Add(70*time.Second)) {
		t.Errorf("at a new revision: %+v, want a first time of its own", g)
	}
	b.forget(lwstest.VLLM)
	b.put(lwstest.Pod("vllm-1", lwstest.Unready))
	if g := b.group1(3*time.Minute, minReady); !g.FirstReady.IsZero() {
		t.Errorf("first ready at %s although the workload was deleted meanwhile", g.FirstReady)
	}
}

// podsOf1 are the pods of group 1.
var podsOf1 = []string{"vllm-1", "vllm-1-1", "vllm-1-2"}

// whole makes group 1 ready since a moment after noon, at revision r1 unless the changes say another.
func (b *groupFixture) whole(since time.Duration, changes ...func(*corev1.Pod)) {
	b.t.Helper()
	for _, name := range podsOf1 {
		b.put(lwstest.Pod(name, append(changes, func(p *corev1.Pod) {
			p.Status.Conditions[1].LastTransitionTime = metav1.NewTime(lwstest.Noon.Add(since))
		})...))
	}
}

// gone deletes the pods of group 1.
func (b *groupFixture) gone() {
	b.t.Helper()
	for _, name := range podsOf1 {
		b.drop(lwstest.Pod(name))
	}
}

// unreadySince is the condition of a pod that stopped being ready.
func unreadySince(after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		lwstest.Unready(p)
		p.Status.Conditions[1].LastTransitionTime = metav1.NewTime(lwstest.Noon.Add(after))
	}
}

// What a scale-down takes is new when a scale-up brings it back.
func TestScaledDownGroupIsNew(t *testing.T) {
	b := newGroupFixture(t)
	b.whole(0)
	if g := b.group1(time.Minute, 0); !g.FirstReady.Equal(lwstest.Noon) {
		t.Fatalf("first ready at %s", g.FirstReady)
	}
	all := b.wanted(1, 3, nil, lwstest.Noon.Add(time.Minute), 0)
	if len(all) != 2 || !all[1].Ready || !all[1].FirstReady.IsZero() {
		t.Errorf("a group that is about to go is %+v", all)
	}
	b.gone()
	if all := b.wanted(1, 3, nil, lwstest.Noon.Add(time.Minute), 0); len(all) != 1 {
		t.Errorf("groups %+v, want one", all)
	}
	if n := len(b.sets[lwstest.VLLM].entries); n != 0 {
		t.Errorf("%d groups are remembered that do not exist and are not wanted", n)
	}
	if g := b.group1(2*time.Minute, 0); !g.LostAt.IsZero() {
		t.Errorf("a group that is wanted again was lost at %s", g.LostAt)
	}
	b.put(lwstest.Pod("vllm-1", lwstest.Unready))
	if g := b.group1(3*time.Minute, 0); !g.FirstReady.IsZero() {
		t.Errorf("a group that came back with a scale-up was ready at %s", g.FirstReady)
	}
}

// The same if the scale-up comes before the group is deleted.
func TestTerminatingGroupIsNew(t *testing.T) {
	b := newGroupFixture(t)
	b.whole(0)
	b.group1(time.Minute, 0)
	b.of(lwstest.VLLM, 1, 3, nil, lwstest.Noon.Add(time.Minute), 0)
	b.put(lwstest.Pod("vllm-1", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon.Add(time.Minute)} }))
	if g := b.group1(2*time.Minute, 0); !g.FirstReady.IsZero() {
		t.Errorf("a group that is being deleted although it is requested again was ready at %s", g.FirstReady)
	}
}

func TestGroupIsLost(t *testing.T) {
	const minReady = time.Minute
	for _, tt := range []struct {
		name, reason string
		minReady     time.Duration
		then         func(b *groupFixture)
		at, want     time.Duration
	}{
		{"ready", "zero while it is", 0, func(*groupFixture) {}, time.Hour, -1},
		{
			"worker fails", "the pod has the time", 0,
			func(b *groupFixture) { b.put(lwstest.Pod("vllm-1-1", unreadySince(3*time.Minute))) }, 4 * time.Minute, 3 * time.Minute,
		},
		{
			"two workers fail", "the first counts", 0, func(b *groupFixture) {
				b.put(lwstest.Pod("vllm-1-1", unreadySince(3*time.Minute)))
				b.put(lwstest.Pod("vllm-1-2", unreadySince(2*time.Minute)))
			}, 4 * time.Minute, 2 * time.Minute,
		},
		{
			"worker deleted", "no pod has the time, so it is that of the observation", 0,
			func(b *groupFixture) { b.drop(lwstest.Pod("vllm-1-1")) }, 4 * time.Minute, 4 * time.Minute,
		},
		{
			"all deleted", "a missing group is lost too", 0, (*groupFixture).gone, 4 * time.Minute, 4 * time.Minute,
		},
		{
			"recreated", "another pod under the name changes nothing", 0, func(b *groupFixture) {
				b.put(lwstest.Pod("vllm-1-1", unreadySince(2*time.Minute)))
				b.group1(2*time.Minute, 0)
				b.drop(lwstest.Pod("vllm-1-1"))
				b.group1(3*time.Minute, 0)
				b.put(lwstest.Pod("vllm-1-1", unreadySince(4*time.Minute)))
			}, 5 * time.Minute, 2 * time.Minute,
		},
		{
			"flaps", "it was not ready for long", 0, func(b *groupFixture) {
				b.put(lwstest.Pod("vllm-1-1", unreadySince(2*time.Minute)))
				b.group1(2*time.Minute, 0)
				b.whole(3 * time.Minute)
				b.group1(3*time.Minute+9*time.Second, 0)
				b.put(lwstest.Pod("vllm-1-1", unreadySince(4*time.Minute)))
			}, 3*time.Minute + 9*time.Second, 2 * time.Minute,
		},
		{
			"flaps within minReady", "nor for long enough", minReady, func(b *groupFixture) {
				b.put(lwstest.Pod("vllm-1-1", unreadySince(2*time.Minute)))
				b.group1(2*time.Minute, minReady)
				b.whole(3 * time.Minute)
				b.group1(3*time.Minute, minReady)
				b.put(lwstest.Pod("vllm-1-1", unreadySince(3*time.Minute+50*time.Second)))
			}, 3*time.Minute + 50*time.Second, 2 * time.Minute,
		},
		{
			"ready again, not yet for long", "it may be flapping", 0, func(b *groupFixture) {
				b.put(lwstest.Pod("vllm-1-1", unreadySince(2*time.Minute)))
				b.group1(2*time.Minute, 0)
				b.whole(3 * time.Minute)
				b.group1(3*time.Minute, 0)
			}, 3*time.Minute + 9*time.Second, 2 * time.Minute,
		},
		{
			"ready again", "time alone makes it good", 0, func(b *groupFixture) {
				b.put(lwstest.Pod("vllm-1-1", unreadySince(2*time.Minute)))
				b.group1(2*time.Minute, 0)
				b.whole(3 * time.Minute)
				b.group1(3*time.Minute, 0)
			}, 3*time.Minute + 10*time.Second, -1,
		},
		{
			"lost anew", "it was not observed while it was ready for long", 0, func(b *groupFixture) {
				b.put(lwstest.Pod("vllm-1-1", unreadySince(2*time.Minute)))
				b.group1(2*time.Minute, 0)
				b.whole(3 * time.Minute)
				b.group1(3*time.Minute, 0)
				b.put(lwstest.Pod("vllm-1-1", unreadySince(time.Hour)))
			}, time.Hour + time.Second, time.Hour,
		},
		{
			"clocks differ", "a pod from the future is lost now", 0,
			func(b *groupFixture) { b.put(lwstest.Pod("vllm-1-1", unreadySince(time.Hour))) }, time.Minute, time.Minute,
		},
		{
			"terminating", "since the deletion was requested", 0, func(b *groupFixture) {
				b.put(lwstest.Pod("vllm-1-1", func(p *corev1.Pod) {
					p.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon.Add(2*time.Minute + 30*time.Second)}
					p.DeletionGracePeriodSeconds = ptr.To[int64](30)
				}))
			}, 3 * time.Minute, 2 * time.Minute,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newGroupFixture(t)
			b.whole(0)
			b.group1(time.Minute, tt.minReady)
			tt.then(b)
			got := b.group1(tt.at, tt.minReady).LostAt
			if want := lwstest.Noon.Add(tt.want); (tt.want < 0 && !got.IsZero()) || (tt.want >= 0 && !got.Equal(want)) {
				t.Errorf("lost at %s, want %s: %s", got, want, tt.reason)
			}
		})
	}
}

// A driver that starts while a group is not ready takes what its pods tell.
func TestGroupNeverSeenReady(t *testing.T) {
	b := newGroupFixture(t)
	if g := b.group1(0, 0); !g.LostAt.IsZero() {
		t.Errorf("a group that never was is lost at %s", g.LostAt)
	}
	pending := func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil
		p.CreationTimestamp = metav1.NewTime(lwstest.Noon.Add(time.Minute))
	}
	b.put(lwstest.Pod("vllm-1", pending))
	if g := b.group1(time.Hour, 0); !g.LostAt.Equal(lwstest.Noon.Add(time.Minute)) {
		t.Errorf("lost at %s, want when its pods came to be", g.LostAt)
	}
}

// A pod with LWS's name label alone is no group, and the groups keep their numbers.
func TestPodWithoutGroupIndexIsNoGroup(t *testing.T) {
	b := newGroupFixture(t)
	b.whole(0)
	unlabelled := lwstest.Pod("unlabelled", func(p *corev1.Pod) { delete(p.Labels, lws.GroupIndexLabelKey) })
	if v := NewPod(unlabelled); len(v.groupKeys()) > 0 {
		t.Errorf("it is indexed as %q", v.groupKeys())
	}
}

func TestGroupsThatLWSDoesNotNumber(t *testing.T) {
	b := newGroupFixture(t)
	for _, id := range []string{"x7f", "a3b"} {
		b.put(lwstest.Pod("vllm-"+id, func(p *corev1.Pod) {
			p.Labels[lws.GroupIndexLabelKey] = id
			p.Annotations[lws.SizeAnnotationKey] = "1"
		}))
	}
	all := b.wanted(3, 1, nil, lwstest.Noon, 0)
	if len(all) != 3 || all[0].Leader != "vllm-a3b" || all[1].Leader != "vllm-x7f" || !all[1].Ready || all[2].Ready {
		t.Errorf("groups are %+v", all)
	}
	if id := b.unnumbered(lwstest.VLLM); id != "x7f" && id != "a3b" {
		t.Errorf("%q is reported as the group without a number", id)
	}
	b.drop(lwstest.Pod("vllm-x7f", func(p *corev1.Pod) { p.Labels[lws.GroupIndexLabelKey] = "x7f" }))
	b.of(lwstest.VLLM, 3, 1, nil, lwstest.Noon, 0)
	if n := len(b.sets[lwstest.VLLM].entries); n != 1 {
		t.Errorf("%d groups are kept: one without a number is never recreated", n)
	}
}

// LWS builds the workers of every group by the size in the spec, and the leader by that of its revision.
func TestGroupBuiltFromTwoRevisions(t *testing.T) {
	pod := func(name, size string, changes ...func(*corev1.Pod)) *corev1.Pod {
		return lwstest.Pod(name, append(changes, func(p *corev1.Pod) { p.Annotations[lws.SizeAnnotationKey] = size })...)
	}
	terminating := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(lwstest.Noon)), ptr.To[int64](1)
	}
	in := func(subdomain string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Subdomain = subdomain } }
	of := func(revision string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels[lws.RevisionKey] = revision }
	}
	for _, tt := range []struct {
		name string
		pods []*corev1.Pod
		// spec is the size in the spec, own that of revision r1; 0: unknown.
		spec, own int
		want      string // the reason, empty if the group is ready
		size      int    // that the group is judged by
	}{
		{"untouched while the spec has another size", []*corev1.Pod{pod("vllm-1", "2"), pod("vllm-1-1", "2")}, 4, 2, "", 2},
		{
			"more workers", []*corev1.Pod{pod("vllm-1", "2"), pod("vllm-1-1", "4"), pod("vllm-1-2", "4"), pod("vllm-1-3", "4")},
			4, 2, plan.ReasonTwoRevisions, 2,
		},
		{
			"more workers, the size restored", []*corev1.Pod{pod("vllm-1", "2"), pod("vllm-1-1", "4"), pod("vllm-1-2", "4"), pod("vllm-1-3", "4")},
			2, 2, plan.ReasonTwoRevisions, 2,
		},
		{"fewer workers", []*corev1.Pod{pod("vllm-1", "4"), pod("vllm-1-1", "2")}, 2, 4, plan.ReasonTwoRevisions, 4},
		{"no workers", []*corev1.Pod{pod("vllm-1", "2")}, 1, 2, plan.ReasonTwoRevisions, 2},
		{"no workers yet", []*corev1.Pod{pod("vllm-1", "2")}, 4, 2, "PodMissing", 2},
		{"workers of a leader that had none", []*corev1.Pod{pod("vllm-1", "1"), pod("vllm-1-1", "2")}, 2, 1, plan.ReasonTwoRevisions, 1},
		{"one subdomain", []*corev1.Pod{pod("vllm-1", "2", in("vllm-1")), pod("vllm-1-1", "2", in("vllm-1"))}, 2, 2, "", 2},
		{"two subdomains", []*corev1.Pod{pod("vllm-1", "2", in("vllm")), pod("vllm-1-1", "2", in("vllm-1"))}, 2, 2, plan.ReasonTwoRevisions, 2},
		{"its revision's size is unknown", []*corev1.Pod{pod("vllm-1", "2"), pod("vllm-1-1", "2")}, 4, 0, "", 2},
		{"the group is being replaced", []*corev1.Pod{pod("vllm-1", "2"), pod("vllm-1-1", "4", of("r0"))}, 2, 2, "MixedRevisions", 2},
		{"the former worker is being deleted", []*corev1.Pod{pod("vllm-1", "2"), pod("vllm-1-1", "4", terminating)}, 2, 2, "Terminating", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newGroupFixture(t)
			for _, p := range tt.pods {
				b.put(p)
			}
			sizes := map[string]int{}
			if tt.own > 0 {
				sizes["r1"] = tt.own
			}
			g := b.wanted(2, tt.spec, sizes, lwstest.Noon.Add(time.Minute), 0)[1]
			if g.Reason != tt.want || g.Ready != (tt.want == "") || g.Pods != tt.size {
				t.Errorf("%+v", g)
			}
			if again := b.wanted(2, tt.spec, map[string]int{"r1": 9}, lwstest.Noon.Add(time.Minute), 0)[1]; again.Pods != 9 {
				t.Errorf("LWS recorded another size: %+v", again)
			}
		})
	}
}
