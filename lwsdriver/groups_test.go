// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

var vllm = types.NamespacedName{Namespace: "default", Name: "vllm"}

// groupBed feeds pods to groups as the informer would.
type groupBed struct {
	t *testing.T
	groups
}

func newGroupBed(t *testing.T) *groupBed {
	t.Helper()
	b := &groupBed{t: t}
	b.pods = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{podGroupIndex: indexPodByGroup})
	return b
}

func (b *groupBed) put(p *corev1.Pod) {
	b.t.Helper()
	v := view(b.t, p)
	if err := b.pods.Update(v); err != nil {
		b.t.Fatal(err)
	}
	b.mark(v.setKey(), v.group)
}

func (b *groupBed) drop(p *corev1.Pod) {
	b.t.Helper()
	v := view(b.t, p)
	if err := b.pods.Delete(v); err != nil {
		b.t.Fatal(err)
	}
	b.mark(v.setKey(), v.group)
}

// group1 is group 1 of two, as seen after a while, for a workload whose spec says size 9: the pods say 3.
func (b *groupBed) group1(after, minReady time.Duration) plan.Group {
	b.t.Helper()
	all := b.of(vllm, 2, 9, noon.Add(after), minReady)
	if len(all) != 2 || all[0].Index != 0 || all[1].Index != 1 {
		b.t.Fatalf("groups %+v, want 0 and 1", all)
	}
	return all[1]
}

func TestGroupIsReadyAsAWhole(t *testing.T) {
	b := newGroupBed(t)
	if g := b.group1(0, 0); g.Ready || g.Revision != "" || g.Reason != "PodMissing" || g.Pod != "vllm-1" {
		t.Errorf("a group without pods is %+v", g)
	}
	b.put(testPod("vllm-1"))
	b.put(testPod("vllm-1-1"))
	if g := b.group1(0, 0); g.Ready || g.Reason != "PodMissing" || g.ReadyPods != 2 || g.Pods != 3 {
		t.Errorf("a group with a worker missing is %+v", g)
	}
	b.put(testPod("vllm-1-2", unready))
	if g := b.group1(0, 0); g.Ready || g.Pod != "vllm-1-2" || g.Reason != "NotReady" {
		t.Errorf("a group with an unready worker is %+v", g)
	}
	later := metav1.NewTime(noon.Add(5 * time.Second))
	b.put(testPod("vllm-1-2", func(p *corev1.Pod) { p.Status.Conditions[1].LastTransitionTime = later }))
	if g := b.group1(time.Minute, 0); !g.Ready || g.Revision != "r1" || !g.ReadySince.Equal(later.Time) || g.Reason != "" {
		t.Errorf("a whole group is %+v, want ready since the last of its pods", g)
	}
	b.put(testPod("vllm-1-2", func(p *corev1.Pod) { p.Labels[lws.RevisionKey] = "r2" }))
	if g := b.group1(time.Minute, 0); g.Ready || g.Reason != "MixedRevisions" {
		t.Errorf("a group at two revisions is %+v", g)
	}
	b.drop(testPod("vllm-1"))
	if g := b.group1(time.Minute, 0); g.Ready || g.Revision != "" || g.Reason != "LeaderMissing" {
		t.Errorf("a group without its leader is %+v", g)
	}
}

func TestFlappingDoesNotLookNew(t *testing.T) {
	b := newGroupBed(t)
	whole := func(since time.Duration) {
		for _, name := range []string{"vllm-1", "vllm-1-1", "vllm-1-2"} {
			b.put(testPod(name, func(p *corev1.Pod) { p.Status.Conditions[1].LastTransitionTime = metav1.NewTime(noon.Add(since)) }))
		}
	}
	const minReady = 10 * time.Second
	whole(0)
	if g := b.group1(9*time.Second, minReady); !g.FirstReady.IsZero() {
		t.Errorf("first ready at %s before minReady had passed", g.FirstReady)
	}
	want := noon.Add(minReady)
	if g := b.group1(11*time.Second, minReady); !g.FirstReady.Equal(want) {
		t.Errorf("first ready at %s, want %s", g.FirstReady, want)
	}
	b.put(testPod("vllm-1-1", unready))
	b.drop(testPod("vllm-1"))
	b.group1(20*time.Second, minReady)
	whole(30 * time.Second)
	if g := b.group1(time.Minute, minReady); !g.FirstReady.Equal(want) {
		t.Errorf("first ready at %s after flapping and losing its leader, want %s", g.FirstReady, want)
	}
	for _, name := range []string{"vllm-1", "vllm-1-1", "vllm-1-2"} {
		b.put(testPod(name, func(p *corev1.Pod) {
			p.Labels[lws.RevisionKey] = "r2"
			p.Status.Conditions[1].LastTransitionTime = metav1.NewTime(noon.Add(time.Minute))
		}))
	}
	if g := b.group1(2*time.Minute, minReady); g.Revision != "r2" || !g.FirstReady.Equal(noon.Add(70*time.Second)) {
		t.Errorf("at a new revision: %+v, want a first time of its own", g)
	}
	b.forget(vllm)
	b.put(testPod("vllm-1", unready))
	if g := b.group1(3*time.Minute, minReady); !g.FirstReady.IsZero() {
		t.Errorf("first ready at %s although the workload was deleted meanwhile", g.FirstReady)
	}
}

func TestGroupsThatLWSDoesNotNumber(t *testing.T) {
	b := newGroupBed(t)
	for _, id := range []string{"x7f", "a3b"} {
		b.put(testPod("vllm-"+id, func(p *corev1.Pod) {
			p.Labels[lws.GroupIndexLabelKey] = id
			p.Annotations[lws.SizeAnnotationKey] = "1"
		}))
	}
	all := b.of(vllm, 3, 1, noon, 0)
	if len(all) != 3 || all[0].Leader != "vllm-a3b" || all[1].Leader != "vllm-x7f" || !all[1].Ready || all[2].Ready {
		t.Errorf("groups are %+v", all)
	}
}
