// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
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

// Each query of the published dashboard returns data of a release whose driver a real Prometheus scrapes: no query names a metric or label that does not exist.
//
// Proves (test): Monitoring: alerts; the account that reads metrics; queries of the dashboard.
func TestDashboardQueries(t *testing.T) {
	began := time.Now()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	target := listener.Addr().String()
	_ = listener.Close()
	e := serving.NewEnv(t)
	d := driver.Prepare(t, driver.Kubeconfig(t, e.Cluster), e.Namespace)
	d.Args = []string{"--metrics-address", target}
	d.Begin()
	d.AwaitSync()
	url, stop, err := cluster.StartPrometheus(t.Context(), t.TempDir(), target)
	require.NoError(t, err)
	t.Cleanup(stop)
	client, err := api.NewClient(api.Config{Address: url})
	require.NoError(t, err)
	// data returns the series that a query has at any second since the test began.
	data := func(ctx context.Context, query string) (model.Matrix, error) {
		value, _, _, err := prometheus.NewAPI(client).QueryRange(ctx, query, prometheus.Range{Start: began, End: time.Now(), Step: time.Second})
		series, _ := value.(model.Matrix)
		return series, err
	}
	s := serving.Prepare(e, d)
	e.Deploy("model", 4)
	s.Expose()
	canary := s.BeginBy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}, Traffic: serving.ByRoute()})
	s.Upgrade(0)
	s.Weight(10)
	// The release has a deadline again for as long as a group of the canary is not ready.
	e.Behave(canary+"-0-1", cluster.BehaviorNeverReady)

	queries := dashboard(t)
	require.GreaterOrEqual(t, len(queries), 20, "the dashboard has only %d queries", len(queries))
	for _, query := range queries {
		await.Nil(t, "data of "+query, func(ctx context.Context) error {
			series, err := data(ctx, query)
			if err == nil && len(series) == 0 {
				err = errors.New("no data")
			}
			return err
		})
	}
	_, err = data(t.Context(), "rate(")
	assert.Error(t, err, "an invalid query returns data")
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
}

// dashboard returns the queries of the published dashboard, for all namespaces and workloads.
func dashboard(t *testing.T) (queries []string) {
	t.Helper()
	raw := files.Read(t, filepath.Join("..", "..", "config", "monitoring", "dashboard.json"))
	var file struct {
		Panels []struct {
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(raw, &file))
	variables := strings.NewReplacer("$namespace", ".*", "$workload", ".*", "$__rate_interval", "5s")
	for _, p := range file.Panels {
		for _, target := range p.Targets {
			queries = append(queries, variables.Replace(target.Expr))
		}
	}
	return queries
}
