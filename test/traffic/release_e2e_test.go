// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
	"github.com/lockstep-rollouts/lockstep/test/serving"
)

// A complete release: the requested shares, header route, promotion. No request is lost or misrouted.
//
// Proves (smoke): Order of effects, up: isolation, canary, groups, share; no request lost.
func TestTrafficRelease(t *testing.T) {
	s := serving.Serve(t)
	g := s.Load(load.Options{
		Rate: 800, LongEvery: 100, LongFor: serving.Longest, MatchEvery: 10, Match: http.Header{serving.Match: {"yes"}, "Cookie": {"session=1; tester=always; theme=dark"}},
	})
	stable := func(canary string, weight float64) load.Shares {
		shares := load.Shares{}
		if weight < 100 {
			shares["model"] = 100 - weight
		}
		if weight > 0 {
			shares[canary] = weight
		}
		return shares
	}
	g.Begin(load.Phase{Name: "stable alone", Want: load.Shares{"model": 100}})
	s.Await(g, 500)
	canary := s.BeginRelease(serving.ByRoute())
	g.Begin(load.Phase{Name: "first batch, weight 0", Want: load.Shares{"model": 100}})
	s.Upgrade(0)
	s.Await(g, 3000)
	g.Begin(load.Phase{Name: "10 %", Want: stable(canary, 10)})
	s.Weight(10)
	s.Await(g, 9000)
	g.Begin(load.Phase{Name: "header match", Want: stable(canary, 10), WantMatch: canary})
	route(s, byHeader)
	s.Await(g, 9000)
	g.Begin(load.Phase{Name: "header match removed", Want: stable(canary, 10)})
	route(s)
	s.Await(g, 3000)
	g.Begin(load.Phase{Name: "cookie match", Want: stable(canary, 10), WantMatch: canary})
	route(s, &pb.HeaderMatch{Name: "tester", Value: &pb.HeaderMatch_Cookie{Cookie: "always"}})
	s.Await(g, 4000)
	g.Begin(load.Phase{Name: "cookie match removed", Want: stable(canary, 10)})
	route(s)
	s.Await(g, 2000)
	g.Begin(load.Phase{Name: "second batch, 50 %", Want: stable(canary, 50)})
	s.Upgrade(1)
	s.Weight(50)
	s.Await(g, 9000)
	g.Begin(load.Phase{Name: "driver killed", Want: stable(canary, 50)})
	s.Kill()
	s.Begin()
	s.AwaitSync()
	s.Await(g, 3000)
	g.Begin(load.Phase{Name: "third batch, 100 %", Want: stable(canary, 100)})
	s.Upgrade(2)
	s.Weight(100)
	s.Await(g, 5000)
	g.Begin(load.Phase{Name: "promoted", Want: load.Shares{"model": 100}})
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	s.Await(g, 6000)
	requests, _ := s.Passes(g).Totals()
	assert.GreaterOrEqual(t, requests, serving.Enough, "%d requests prove less than %d do", requests, serving.Enough)
	s.MustBeRestored()
}

// byHeader matches the requests of testers.
var byHeader = &pb.HeaderMatch{Name: serving.Match, Value: &pb.HeaderMatch_Exact{Exact: "yes"}}

// route sends the requests of testers to the canary, or to both sides again without matches.
func route(s *serving.Release, matches ...*pb.HeaderMatch) {
	s.T.Helper()
	_, err := s.SetHeaderRoute(s.T.Context(), &pb.SetHeaderRouteRequest{Workload: s.Ref, ReleaseId: "r1", Name: "testers", Matches: matches})
	require.NoError(s.T, err)
}

// An abort during the release: the canary's requests are withdrawn before its groups are deleted, and its leaders finish
// theirs. A leader gets its first request from the driver.
//
// Proves (test): Order of effects: down (share, drain, capacity), blue-green, in place.
func TestTrafficRollback(t *testing.T) {
	s := serving.Serve(t)
	g := s.Load(load.Options{Rate: 800, LongEvery: 100, LongFor: serving.Longest})
	g.Begin(load.Phase{Name: "stable alone", Want: load.Shares{"model": 100}})
	s.Await(g, 500)
	policy := serving.ByRoute()
	policy.WarmUp = &pb.WarmUpPolicy{Endpoint: fmt.Sprintf(":%d/warm-up", podserver.Port)}
	policy.Drain = &pb.DrainPolicy{
		// Requests that the gateway sent before it accepted the route are counted from the first reading of the metric.
		Period: durationpb.New(time.Second),
		Metric: "vllm:num_requests_running", MetricEndpoint: fmt.Sprintf(":%d/metrics", podserver.Port),
	}
	canary := s.BeginRelease(policy)
	s.Upgrade(0)
	assert.NotZero(t, s.Pods.Counts()[s.Namespace+"/"+canary+"-0"].Requests, "the batch is ready, and its leader got no warm-up")
	s.Weight(30)
	g.Begin(load.Phase{Name: "30 %", Want: load.Shares{"model": 70, canary: 30}})
	s.Await(g, 4000)
	g.Begin(load.Phase{Name: "rolled back", Want: load.Shares{"model": 100}})
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	s.Await(g, 4000)
	s.Passes(g)
	s.MustBeRestored()
}
