// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//nolint:forbidigo // The bubble's clock.
package observe

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"

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
	b := newRoutedFixture(t, stable, 0)
	http := &leaders{}
	http.answer.Store(503)
	prober := probe.New(probe.Config{Transport: http, Log: slog.New(slog.DiscardHandler), Changed: func(string) {}})
	t.Cleanup(prober.Close)
	b.prober = prober
	leader, worker := lwstest.CanaryPod(b.canary.Name, "0"), lwstest.CanaryPod(b.canary.Name, "0-1")
	delete(leader.Labels, record.ServingLabel)
	leader.Status.PodIP = "10.0.0.1"
	b.showPod(leader)
	b.showPod(worker)

	look := func() plan.Group {
		s := &Snapshot{Observation: plan.Observation{Key: lwstest.VLLM}, StableObject: stable}
		s.Now = lwstest.Noon.Add(time.Hour)
		s.Added = []plan.Workload{b.workload(s, b.canary)}
		s.Policy.WarmUp = probe.WarmUp{Endpoint: probe.Endpoint{Port: 8080, Path: "/"}}
		shared := s.Added[0].Groups
		b.readProbes(s)
		assert.Nil(t, shared[0].WarmUp, "the shared groups were changed")
		return s.Added[0].Groups[0]
	}
	keep := func(names ...string) bool {
		return b.Keep(&Snapshot{Observation: plan.Observation{Key: lwstest.VLLM}, StableObject: stable}, plan.Effects{WarmUp: names})
	}
	if g := look(); !g.Ready || g.WarmUp != nil || http.asked.Load() > 0 {
		t.Fatalf("no decision has named the leader: %+v", g)
	}
	b.config.ReadOnly = true
	if g := look(); keep(leader.Name) || g.WarmUp != nil {
		t.Error("a driver that only looks asks")
	}
	b.config.ReadOnly = false
	assert.True(t, keep(leader.Name) && !keep(leader.Name),
		"the next observation differs after the first decision that names a leader, and only then")
	g := look()
	assert.False(t, g.WarmUp == nil || g.WarmUp.Done || g.WarmUp.Message == "", "a cold group: %+v", g)
	http.answer.Store(200)
	b.eventually("the leader is warm", func() bool { g := look(); return g.WarmUp.Done })

	// Another driver knows of no answer, but of the mark.
	http.answer.Store(503)
	b.prober = probe.New(probe.Config{Transport: http, Log: slog.New(slog.DiscardHandler), Changed: func(string) {}})
	t.Cleanup(prober.Close)
	asked := http.asked.Load()
	leader.Labels[record.ServingLabel] = record.Serving
	b.showPod(leader)
	g = look()
	assert.True(t, g.Ready && http.asked.Load() == asked, "a leader in service is asked again: %+v", g)
	http.answer.Store(200)
	delete(leader.Labels, record.ServingLabel)
	b.showPod(leader)
	b.eventually("it is asked once it has no mark", func() bool { g := look(); return g.WarmUp.Done })
	// The mark is this pod's: the next one of the name starts cold.
	http.answer.Store(503)
	leader.UID = "next"
	b.showPod(leader)
	keep(leader.Name)
	assert.False(t, look().WarmUp.Done, "another pod is taken for warm")
	assert.True(t, keep(), "the next observation has no answer once no decision names the leader")
	g = look()
	assert.Nil(t, g.WarmUp, "no decision names the leader any more: %+v", g)
}

// A drain begins when leaders leave that get no more requests. It begins once, anew when there are more, and not at all when the
// release continues. It counts by the clock that the prober has: that of the observations is the API server's, an hour ahead.
func TestDrainSince(t *testing.T) {
	synctest.Test(t, testDrainSince)
}

func testDrainSince(t *testing.T) {
	began := time.Now()
	o := &Observer{prober: probe.New(probe.Config{Log: slog.New(slog.DiscardHandler), Changed: func(string) {}}), asked: map[types.NamespacedName]asked{}}
	// Groups of a canary, or of the workload itself: "stable".
	look := func(uid types.UID, leaders []string, minute int) *Snapshot {
		time.Sleep(time.Until(began.Add(time.Duration(minute) * time.Minute)))
		s := &Snapshot{
			Observation:  plan.Observation{Key: lwstest.VLLM, Now: time.Now().Add(time.Hour)},
			StableObject: &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{UID: "stable"}},
		}
		if uid != "stable" {
			s.AddedObjects = map[string]*lws.LeaderWorkerSet{"c": {ObjectMeta: metav1.ObjectMeta{UID: uid}}}
			s.Added = []plan.Workload{{Name: "c"}}
		}
		for _, name := range leaders {
			s.Stable.Groups = append(s.Stable.Groups, plan.Group{Leader: name, Revision: "r"})
		}
		return s
	}
	for i, step := range []struct {
		reason  string
		uid     types.UID
		leaders string
		minute  int    // of the decision
		begun   int    // -1: none
		stays   string // leaders that exist, and do not leave
	}{
		{"nothing leaves", "a", "", 0, -1, ""},
		{"two groups do", "a", "c-2 c-3", 1, 1, ""},
		{"a later decision", "a", "c-2 c-3", 5, 1, ""},
		{"one is deleted", "a", "c-2", 6, 1, ""},
		{"all do, some of which had requests until now", "a", "c-0 c-1 c-2", 8, 8, ""},
		{"fewer leave", "a", "c-2", 9, 8, "c-0 c-1"},
		{"the release continues", "a", "", 9, -1, ""},
		{"and is given up again", "a", "c-0 c-1 c-2", 10, 10, ""},
		{"another canary of the same name", "b", "c-0 c-1 c-2", 11, 11, ""},
		{"no canary, but the workload's own groups", "stable", "vllm-2", 12, 12, ""},
		{"a later decision about them", "stable", "vllm-2", 13, 12, ""},
		{"more of them", "stable", "vllm-1 vllm-2", 14, 14, ""},
		{"a group fails and its leader is deleted", "stable", "vllm-1", 15, 14, ""},
		{"it exists again", "stable", "vllm-1 vllm-2", 16, 14, ""},
		{"it fails again", "stable", "vllm-1", 17, 14, ""},
		{"it exists, and is to stay", "stable", "vllm-1", 18, 14, "vllm-2"},
		{"it leaves after all", "stable", "vllm-1 vllm-2", 19, 19, ""},
	} {
		o.Keep(look(step.uid, strings.Fields(step.leaders+" "+step.stays), step.minute), plan.Effects{Drain: strings.Fields(step.leaders)})
		now, ok := o.asked[lwstest.VLLM]
		assert.False(t, ok != (step.begun >= 0) || ok && !now.since.Equal(began.Add(time.Duration(step.begun)*time.Minute)),
			"step %d, %s: since %v, %t", i, step.reason, now.since, ok)
	}
	o.forget(lwstest.VLLM)
	assert.Empty(t, o.asked, "the drain of a deleted workload is remembered")
}
