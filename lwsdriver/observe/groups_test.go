// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/words"
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
	require.NoError(b.t, b.store.Update(v))
	b.Invalidate(v.Workload(), v.Group)
}

func (b *groupFixture) drop(p *corev1.Pod) {
	b.t.Helper()
	v := NewPod(p)
	require.NoError(b.t, b.store.Delete(v))
	b.Invalidate(v.Workload(), v.Group)
}

// wanted are all groups, missing ones included.
func (b *groupFixture) wanted(replicas, size int, sizes map[string]int, now time.Time, minReady time.Duration) []plan.Group {
	w := plan.Workload{Name: "vllm", Replicas: replicas, Size: size, Groups: b.groupsOf(lwstest.VLLM, replicas, size, sizes, now, minReady)}
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

// TestGroups runs testdata/groups.txt. Each test is a workload of two groups, and what happens to the pods of group 1, which has three:
//
//	pod NAME [WORDS] [JSON]   is created or changes, in the words of podWords, and with these fields
//	drop NAME                 is deleted
//	whole [WORDS]             all three are ready, in the same words
//	gone                      all three are deleted
//	forget                    the workload is
//	look [WORDS]              tells how many groups there are and are remembered, and group 1
func TestGroups(t *testing.T) {
	datadriven.RunTest(t, "testdata/groups.txt", func(t *testing.T, d *datadriven.TestData) string {
		b := newGroupFixture(t)
		minReady := "0s"
		d.MaybeScanArgs(t, "min-ready", &minReady)
		var told strings.Builder
		for line := range strings.SplitSeq(d.Input, "\n") {
			told.WriteString(b.happen(line, minReady))
		}
		return told.String()
	})
}

// podsOf1 are the pods of group 1.
var podsOf1 = []string{"vllm-1", "vllm-1-1", "vllm-1-2"}

func (b *groupFixture) happen(line, minReady string) string {
	b.t.Helper()
	words, fields, _ := strings.Cut(line, "{")
	verb, rest, _ := strings.Cut(strings.TrimSpace(words), " ")
	name, rest, _ := strings.Cut(rest, " ")
	switch verb {
	case "pod":
		p := b.pod(name, name+" "+rest)
		if fields != "" {
			require.NoError(b.t, json.Unmarshal([]byte("{"+fields), p), line)
		}
		b.put(p)
	case "drop":
		b.drop(lwstest.Pod(name))
	case "whole":
		for _, pod := range podsOf1 {
			b.put(b.pod(pod, line))
		}
	case "gone":
		for _, pod := range podsOf1 {
			b.drop(lwstest.Pod(pod))
		}
	case "forget":
		b.forget(lwstest.VLLM)
	case "look":
		return b.look(line, minReady)
	default:
		b.t.Fatalf("what is %q?", line)
	}
	return ""
}

// pod returns a ready pod of revision r1, changed by words.
func (b *groupFixture) pod(name, line string) *corev1.Pod {
	b.t.Helper()
	p := lwstest.Pod(name)
	after := func(set func(metav1.Time)) func(string) error {
		return func(s string) error {
			d, err := time.ParseDuration(s)
			set(metav1.NewTime(lwstest.Noon.Add(d)))
			return err
		}
	}
	words.Line(b.t, line, func(f *flag.FlagSet) {
		f.BoolFunc("unready", "by its condition", func(string) error { lwstest.Unready(p); return nil })
		f.Func("waiting", "reason of its container", func(reason string) error { lwstest.Waiting(reason, "why")(p); return nil })
		f.Func("since", "of its condition", after(func(at metav1.Time) { p.Status.Conditions[1].LastTransitionTime = at }))
		f.Func("created", "", after(func(at metav1.Time) { p.CreationTimestamp = at }))
		f.Func("older", "than the other pods", after(func(at metav1.Time) { p.CreationTimestamp.Time = p.CreationTimestamp.Add(lwstest.Noon.Sub(at.Time)) }))
		f.Func("deleted", "since", after(func(at metav1.Time) { p.DeletionTimestamp = &at }))
		f.Func("grace", "seconds of the deletion", func(s string) error {
			p.DeletionGracePeriodSeconds = new(int64)
			return words.Number(p.DeletionGracePeriodSeconds)(s)
		})
		f.Func("exited", "when its container was killed", after(func(at metav1.Time) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "server", LastTerminationState: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: at},
			}}}
		}))
		f.Func("revision", "", func(s string) error { p.Labels[lws.RevisionKey] = s; return nil })
		f.Func("size", "of its group", func(s string) error { p.Annotations[lws.SizeAnnotationKey] = s; return nil })
		f.StringVar(&p.Spec.Subdomain, "in", "", "a subdomain")
	})
	return p
}

func (b *groupFixture) look(line, minReady string) string {
	b.t.Helper()
	shortest, err := time.ParseDuration(minReady)
	require.NoError(b.t, err)
	var after time.Duration
	replicas, size, sizes := 2, 9, map[string]int{}
	words.Line(b.t, line, func(f *flag.FlagSet) {
		f.DurationVar(&after, "after", 0, "noon")
		f.IntVar(&replicas, "replicas", replicas, "in the spec")
		f.IntVar(&size, "size", size, "in the spec")
		f.Func("own", "size of revision r1", func(s string) error {
			n := 0
			defer func() { sizes["r1"] = n }()
			return words.Number(&n)(s)
		})
	})
	all := b.wanted(replicas, size, sizes, lwstest.Noon.Add(after), shortest)
	remembered := 0
	if set := b.sets[lwstest.VLLM]; set != nil {
		remembered = len(set.entries)
	}
	told := fmt.Sprintf("%s: %d groups, %d remembered\n", line, len(all), remembered)
	if len(all) < 2 {
		return told
	}
	g := all[1]
	told += fmt.Sprintf("  %s at %q: ready %t, %d of %d pods", g.Leader, g.Revision, g.Ready, g.ReadyPods, g.Pods)
	for _, moment := range []struct {
		what string
		at   time.Time
	}{{"since", g.ReadySince}, {"first", g.FirstReady}, {"lost", g.LostAt}} {
		if !moment.at.IsZero() {
			told += fmt.Sprintf(", %s %s", moment.what, moment.at.Sub(lwstest.Noon))
		}
	}
	if g.Terminating {
		told += ", terminating"
	}
	if g.TerminatingReady {
		told += ", available to LeaderWorkerSet"
	}
	if !g.Ready {
		told += fmt.Sprintf("\n  %s: pod %s %s", g.Reason, g.Pod, g.Message)
	}
	return told + "\n"
}

// A pod with LWS's name label alone is no group, and the groups keep their numbers.
func TestPodWithoutGroupIndexIsNoGroup(t *testing.T) {
	unlabelled := lwstest.Pod("unlabelled", func(p *corev1.Pod) { delete(p.Labels, lws.GroupIndexLabelKey) })
	assert.Empty(t, NewPod(unlabelled).groupKeys(), "it is indexed as")
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
	assert.True(t, len(all) == 3 && all[0].Leader == "vllm-a3b" && all[1].Leader == "vllm-x7f" && all[1].Ready && !all[2].Ready,
		"groups are %+v", all)
	id := b.unnumbered(lwstest.VLLM)
	assert.False(t, id != "x7f" && id != "a3b", "%q is reported as the group without a number", id)
	b.drop(lwstest.Pod("vllm-x7f", func(p *corev1.Pod) { p.Labels[lws.GroupIndexLabelKey] = "x7f" }))
	b.groupsOf(lwstest.VLLM, 3, 1, nil, lwstest.Noon, 0)
	assert.Len(t, b.sets[lwstest.VLLM].entries, 1, "groups are kept: one without a number is never recreated")
}

func rollout(id, batch string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels[record.RolloutIDLabel], p.Labels[record.RolloutBatchLabel] = id, batch
	}
}

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon} }

func at(revision string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[lws.RevisionKey] = revision }
}

func TestGroupMarks(t *testing.T) {
	labels := func(id string, batch int) plan.RolloutLabels { return plan.RolloutLabels{ID: id, Batch: batch} }
	for _, tt := range []struct {
		name, reason string
		pods         []*corev1.Pod
		want         []plan.RolloutLabels
	}{
		{"none", "", []*corev1.Pod{lwstest.Pod("vllm-1"), lwstest.Pod("vllm-1-1")}, nil},
		{"all", "", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "2")), lwstest.Pod("vllm-1-1", rollout("k", "2"))}, []plan.RolloutLabels{labels("k", 2)}},
		{"some", "", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "2")), lwstest.Pod("vllm-1-1")}, []plan.RolloutLabels{{}, labels("k", 2)}},
		{
			"different", "", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "2")), lwstest.Pod("vllm-1-1", rollout("j", "2"))},
			[]plan.RolloutLabels{labels("j", 2), labels("k", 2)},
		},
		{"no number", "a user's own value", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "two"))}, []plan.RolloutLabels{labels("k", -1)}},
		{"no plain number", "it must be as we write it", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "02"))}, []plan.RolloutLabels{labels("k", -1)}},
		{
			"terminating", "a pod that is being deleted does not count", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "2")), lwstest.Pod("vllm-1-1", terminating)},
			[]plan.RolloutLabels{labels("k", 2)},
		},
		{
			"left over", "nor has a worker of the group before", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "2")), lwstest.Pod("vllm-1-1", at("r0"))},
			[]plan.RolloutLabels{labels("k", 2)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newGroupFixture(t)
			for _, p := range tt.pods {
				b.put(p)
			}
			assert.Empty(t, cmp.Diff(tt.want, b.wanted(2, 9, nil, lwstest.Noon, 0)[1].Rollouts), "%s (-want +got)", tt.reason)
		})
	}
}

// Kubelets whose clocks are an hour off make no group available earlier or later.
func TestSkewedKubelet(t *testing.T) {
	const minReady = time.Minute
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		var m groupMemory
		at := func(after time.Duration, ready bool) plan.Group {
			g := plan.Group{Ready: ready, Revision: "r"}
			if ready {
				g.ReadySince = noon.Add(skew)
			}
			m.update(&g, time.Time{}, noon.Add(after), minReady)
			return g
		}
		at(-10*time.Second, false)
		for _, seconds := range []time.Duration{1, 30, 49} {
			assert.True(t, at(seconds*time.Second, true).FirstReady.IsZero(), "skew %s: available after %d s", skew, seconds)
		}
		g := at(62*time.Second, true)
		assert.False(t, g.FirstReady.IsZero(), "skew %s: not available after 62 s: ready since %s", skew, g.ReadySince)
	}
}

// An API server whose clock was an hour ahead for a moment makes no group available an hour later.
func TestClockThatWasAhead(t *testing.T) {
	const minReady = time.Minute
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var m groupMemory
	m.update(&plan.Group{Revision: "r"}, time.Time{}, noon.Add(time.Hour), minReady)
	for _, after := range []time.Duration{time.Second, 30 * time.Second, 62 * time.Second} {
		g := plan.Group{Ready: true, Revision: "r", ReadySince: noon}
		m.update(&g, time.Time{}, noon.Add(after), minReady)
		if available := !g.FirstReady.IsZero(); available != (after > minReady) || g.LostAt.After(noon.Add(after)) {
			t.Errorf("after %s: available %t, lost at %s", after, available, g.LostAt)
		}
	}
}

func TestAddressOfLeader(t *testing.T) {
	for name, tt := range map[string]struct {
		change      func(*corev1.Pod)
		address     string
		hostNetwork bool
	}{
		"running":               {func(*corev1.Pod) {}, "10.0.0.1", false},
		"succeeded":             {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "", false},
		"failed":                {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, "", false},
		"no address yet":        {func(p *corev1.Pod) { p.Status.PodIP = "" }, "", false},
		"hostNetwork":           {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "10.0.0.1", true},
		"the address of a node": {func(p *corev1.Pod) { p.Status.HostIP = p.Status.PodIP }, "10.0.0.1", true},
	} {
		t.Run(name, func(t *testing.T) {
			p := lwstest.Pod("vllm-1")
			p.Status.PodIP = "10.0.0.1"
			tt.change(p)
			pod := NewPod(p)
			assert.True(t, pod.address == tt.address && pod.hostNetwork == tt.hostNetwork,
				"address %q, hostNetwork %v; want %q, %v", pod.address, pod.hostNetwork, tt.address, tt.hostNetwork)
		})
	}
}
