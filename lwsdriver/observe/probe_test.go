// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
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

// A whole group whose leader has not answered its first request is not ready; one that may get requests already had.
func TestWarmUp(t *testing.T) {
	stable := lwstest.RoutedPhase(t, record.Progressing, nil)
	b := newRoutedBed(t, stable, 0)
	http := &leaders{}
	http.answer.Store(503)
	prober := probe.New(probe.WithTransport(http), probe.OnChange(func(string) {}))
	t.Cleanup(prober.Close)
	b.prober = prober
	leader, worker := lwstest.CanaryPod(b.canary.Name, "0"), lwstest.CanaryPod(b.canary.Name, "0-1")
	delete(leader.Labels, record.ServingLabel)
	leader.Status.PodIP = "10.0.0.1"
	b.showPod(leader)
	b.showPod(worker)

	look := func() (*Snapshot, []plan.Group) {
		s := &Snapshot{Observation: plan.Observation{Key: lwstest.VLLM}, StableObject: stable}
		s.Now = lwstest.Noon.Add(time.Hour)
		s.Added = []plan.Workload{b.workload(s, b.canary)}
		s.Policy.WarmUp = probe.WarmUp{Endpoint: probe.Endpoint{Port: 8080, Path: "/"}}
		shared := s.Added[0].Groups
		b.warmUp(s)
		return s, shared
	}
	s, shared := look()
	if !shared[0].Ready || shared[0].ReadySince.IsZero() {
		t.Fatalf("the shared groups were changed, or the group was not ready to begin with: %+v", shared[0])
	}
	g := s.Added[0].Groups[0]
	if g.Ready || !g.FirstReady.IsZero() || g.Reason != reasonWarmUp || g.Pod != leader.Name || g.Message == "" {
		t.Errorf("a cold group: %+v", g)
	}
	if s.Recheck == 0 {
		t.Error("no recheck is scheduled")
	}
	http.answer.Store(200)
	b.eventually("the leader is warm", func() bool { s, _ := look(); return s.Added[0].Groups[0].Ready })

	// Another driver knows of no answer, but of the mark.
	http.answer.Store(503)
	b.prober = probe.New(probe.WithTransport(http))
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
	b.config.ReadOnly = true
	if s, _ := look(); s.Added[0].Groups[0].Ready || http.asked.Load() != asked {
		t.Error("a driver that only looks has asked, or knows without asking")
	}
	b.config.ReadOnly = false
	// The mark is this pod's: the next one of the name starts cold.
	delete(leader.Labels, record.ServingLabel)
	leader.UID = "next"
	b.showPod(leader)
	if s, _ := look(); s.Added[0].Groups[0].Ready {
		t.Error("another pod is taken for warm")
	}
}

// A drain begins when groups leave that get no more requests. It begins once, anew when there are more, and not at all when
// the release continues.
func TestDrainSince(t *testing.T) {
	o := &Observer{}
	// Groups of a canary, or of the workload itself: "stable".
	canary := func(uid types.UID, now time.Time) *Snapshot {
		s := &Snapshot{Observation: plan.Observation{Key: lwstest.VLLM}, StableObject: &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{UID: "stable"}}}
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
		{"one is deleted", "a", from(2)[:1], 6, 1},
		{"fewer leave", "a", from(3), 7, 1},
		{"all do, some of which had requests until now", "a", from(0), 8, 8},
		{"the release continues", "a", nil, 9, -1},
		{"and is given up again", "a", from(0), 10, 10},
		{"another canary of the same name", "b", from(0), 11, 11},
		{"no canary, but the workload's own groups", "stable", from(2), 12, 12},
		{"a later look at them", "stable", from(2), 13, 12},
		{"more of them", "stable", from(1), 14, 14},
	} {
		s := canary(step.uid, lwstest.Noon.Add(time.Duration(step.minute)*time.Minute))
		since, ok := o.drainSince(s, step.groups)
		if ok != (step.begun >= 0) || ok && !since.Equal(lwstest.Noon.Add(time.Duration(step.begun)*time.Minute)) {
			t.Errorf("step %d, %s: since %v, %t", i, step.reason, since, ok)
		}
	}
	o.prober = probe.New()
	o.forget(lwstest.VLLM)
	if len(o.drains) > 0 {
		t.Error("the drain of a deleted workload is remembered")
	}
}
