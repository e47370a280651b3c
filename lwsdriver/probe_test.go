// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
)

// leaders answers all leaders' requests, and counts them.
type leaders struct {
	asked  atomic.Int64
	answer atomic.Int64 // the status
}

func (l *leaders) RoundTrip(*http.Request) (*http.Response, error) {
	l.asked.Add(1)
	return &http.Response{StatusCode: int(l.answer.Load()), Body: io.NopCloser(strings.NewReader("")), Header: http.Header{}}, nil
}

// showPod shows a pod to the driver as its informer would.
func (b *bed) showPod(p *corev1.Pod) {
	b.t.Helper()
	v := view(b.t, p)
	if err := b.engine.Observer.Caches.Pods.GetIndexer().Update(v); err != nil {
		b.t.Fatal(err)
	}
	b.engine.Observer.Caches.Groups.Invalidate(v.Workload(), v.Group)
}

// A whole group whose leader has not answered its first request is not ready; one that may get requests already had.
func TestWarmUp(t *testing.T) {
	stable := routedPhase(t, record.Progressing, nil)
	b := newRoutedBed(t, stable, 0)
	http := &leaders{}
	http.answer.Store(503)
	prober := probe.New(probe.WithTransport(http), probe.OnChange(func(string) {}))
	t.Cleanup(prober.Close)
	b.engine.Observer.prober = prober
	leader, worker := canaryPod(b.canary.Name, "0"), canaryPod(b.canary.Name, "0-1")
	delete(leader.Labels, record.ServingLabel)
	leader.Status.PodIP = "10.0.0.1"
	b.showPod(leader)
	b.showPod(worker)

	look := func() (*Snapshot, []plan.Group) {
		s := &Snapshot{Observation: plan.Observation{Key: vllm}, StableObject: stable}
		s.Now = noon.Add(time.Hour)
		s.Added = []plan.Workload{b.engine.Observer.workload(s, b.canary)}
		s.Policy.WarmUp = probe.WarmUp{Endpoint: probe.Endpoint{Port: 8080, Path: "/"}}
		shared := s.Added[0].Groups
		b.engine.Observer.warmUp(s)
		return s, shared
	}
	s, shared := look()
	if !shared[0].Ready || shared[0].ReadySince.IsZero() {
		t.Fatalf("the shared groups were changed, or the group was not ready to begin with: %+v", shared[0])
	}
	g := s.Added[0].Groups[0]
	if g.Ready || !g.FirstReady.IsZero() || g.Reason != ReasonWarmUp || g.Pod != leader.Name || g.Message == "" {
		t.Errorf("a cold group: %+v", g)
	}
	if s.Recheck == 0 {
		t.Error("nobody looks again")
	}
	http.answer.Store(200)
	b.eventually("the leader is warm", func() bool { s, _ := look(); return s.Added[0].Groups[0].Ready })

	// Another driver knows of no answer, but of the mark.
	http.answer.Store(503)
	b.engine.Observer.prober = probe.New(probe.WithTransport(http))
	t.Cleanup(prober.Close)
	asked := http.asked.Load()
	leader.Labels[record.ServingLabel] = record.Serving
	b.showPod(leader)
	if s, _ := look(); !s.Added[0].Groups[0].Ready {
		t.Error("a leader in service is taken for cold")
	}
	if http.asked.Load() != asked {
		t.Error("a leader in service is asked again")
	}
	// A driver that only looks makes no leader work.
	delete(leader.Labels, record.ServingLabel)
	b.showPod(leader)
	b.engine.Observer.config.ReadOnly = true
	if s, _ := look(); s.Added[0].Groups[0].Ready || http.asked.Load() != asked {
		t.Error("a driver that only looks has asked, or knows without asking")
	}
	b.engine.Observer.config.ReadOnly = false
	// The mark is this pod's: the next one of the name starts cold.
	delete(leader.Labels, record.ServingLabel)
	leader.UID = "next"
	b.showPod(leader)
	if s, _ := look(); s.Added[0].Groups[0].Ready {
		t.Error("another pod is taken for warm")
	}
}

// A drain begins when groups leave that get no more requests. It begins once, anew when there are more, and not at all when
// the release goes on.
func TestDrainSince(t *testing.T) {
	o := &Observer{}
	// Groups of a canary, or of the workload itself: "stable".
	canary := func(uid types.UID, now time.Time) *Snapshot {
		s := &Snapshot{Observation: plan.Observation{Key: vllm}, StableObject: &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{UID: "stable"}}}
		s.Now = now
		if uid != "stable" {
			s.AddedObjects = map[string]*lws.LeaderWorkerSet{"c": {ObjectMeta: metav1.ObjectMeta{UID: uid}}}
			s.Added = []plan.Workload{{Name: "c"}}
		}
		return s
	}
	from := func(index int) []plan.Group {
		return []plan.Group{{Index: index, Revision: "B"}, {Index: 9, Revision: "B"}}
	}
	for i, step := range []struct {
		reason string
		uid    types.UID
		groups []plan.Group
		minute int // of the look
		begun  int // -1: none
	}{
		{"nothing leaves", "a", nil, 0, -1},
		{"two groups do", "a", from(2), 1, 1},
		{"a later look", "a", from(2), 5, 1},
		{"one is gone", "a", from(2)[:1], 6, 1},
		{"fewer leave", "a", from(3), 7, 1},
		{"all do, some of which had requests until now", "a", from(0), 8, 8},
		{"the release goes on", "a", nil, 9, -1},
		{"and is given up again", "a", from(0), 10, 10},
		{"another canary of the same name", "b", from(0), 11, 11},
		{"no canary, but the workload's own groups", "stable", from(2), 12, 12},
		{"a later look at them", "stable", from(2), 13, 12},
		{"more of them", "stable", from(1), 14, 14},
	} {
		s := canary(step.uid, noon.Add(time.Duration(step.minute)*time.Minute))
		since, ok := o.drainSince(s, step.groups)
		if ok != (step.begun >= 0) || ok && !since.Equal(noon.Add(time.Duration(step.begun)*time.Minute)) {
			t.Errorf("step %d, %s: since %v, %t", i, step.reason, since, ok)
		}
	}
	o.prober = probe.New()
	o.forget(vllm)
	if len(o.drains) > 0 {
		t.Error("what is gone is remembered")
	}
}

// Only the pod that was seen is marked, and whoever lost a race waits for the cache before it looks again.
func TestMarkLeader(t *testing.T) {
	stable := routedPhase(t, record.Progressing, nil)
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "x", errors.New("uid"))
	for _, tc := range []struct {
		name    string
		answer  error
		shows   bool // the cache, what happened
		wrote   bool
		problem bool
	}{
		{"marked", nil, true, true, false},
		{"another pod", conflict, true, false, false},
		{"gone", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "x"), true, false, false},
		{"refused", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", nil), false, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newRoutedBed(t, stable, 0)
			leader := canaryPod(b.canary.Name, "0")
			delete(leader.Labels, record.ServingLabel)
			b.showPod(leader)
			var sent string
			b.core.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				sent = string(a.(clienttesting.PatchAction).GetPatch()) //nolint:forcetypeassert // a patch
				next := leader.DeepCopy()
				next.ResourceVersion = "8"
				next.Labels[record.ServingLabel] = record.Serving
				if tc.answer != nil {
					next.UID = "next"
				}
				if tc.shows {
					time.AfterFunc(50*time.Millisecond, func() { b.showPod(next); b.engine.Observer.changed(vllm) })
				}
				return true, next, tc.answer
			})
			began := time.Now()
			wrote, err := b.engine.Applier.Apply(t.Context(), &Snapshot{Observation: plan.Observation{Key: vllm}}, plan.MarkLeader{Name: b.canary.Name, Leader: leader.Name, Serves: true})
			if wrote != tc.wrote || (err != nil) != tc.problem {
				t.Errorf("wrote %t, %v", wrote, err)
			}
			if tc.shows && time.Since(began) < 50*time.Millisecond {
				t.Error("did not wait for the cache")
			}
			for _, part := range []string{`"uid":"` + string(leader.UID) + `"`, record.ServingLabel, record.Serving} {
				if !strings.Contains(sent, part) {
					t.Errorf("%s does not say %s", sent, part)
				}
			}
		})
	}
}

// What a driver sees before it has read the routes is no news: each start would tell of every release that ever ended.
func TestAnnounceNothingUnread(t *testing.T) {
	b := newRoutedBed(t, routedPhase(t, record.RollingBack, nil), 0)
	defer b.engine.queue.ShutDown()
	s := b.look()
	d := next(t, s)
	if d.Reason != traffic.ReasonNotSynced {
		t.Fatalf("%+v", d)
	}
	b.engine.announce(s, d)
	if len(b.engine.events.last) > 0 {
		t.Errorf("remembered %v", b.engine.events.last)
	}
	if state := describe(s, d); state.GetTrafficBasis() != 0 && state.GetTrafficWeight() != 0 {
		t.Errorf("a share is told that nobody knows: %v", state)
	}
}

// Two workloads share a route: while the release of one is under way, the other does not give up the fields of both.
func TestSharedRoutes(t *testing.T) {
	stable, routes := routedPhase(t, record.RollingBack, nil), []traffic.Key{{Kind: traffic.KindHTTPRoute, Name: "llm"}}
	other := routedPhase(t, record.Progressing, nil)
	other.Name, other.UID = "other", "other"
	b := newBed(t, stable, other)
	if got := b.engine.Observer.Caches.shared(vllm, routes); !slices.Equal(got, routes) {
		t.Errorf("shared %v", got)
	}
	for _, phase := range []record.Phase{record.Promoted, record.RollingBack, record.Nothing} {
		ended := routedPhase(t, phase, nil)
		ended.Name, ended.UID = "other", "other"
		b.cache(ended)
		if got := b.engine.Observer.Caches.shared(vllm, routes); len(got) > 0 {
			t.Errorf("%s: shared %v", phase, got)
		}
	}
}
