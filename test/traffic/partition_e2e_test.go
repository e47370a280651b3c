// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
	"github.com/lockstep-rollouts/lockstep/test/serving"
)

// inPlace is a release in place, and its two revisions.
type inPlace struct {
	*serving.Release

	stable, update string
}

// partition creates a workload that can be updated in place under requests: its leaders serve for a while after their
// deletion, and become ready after their workers. It begins release r1.
func partition(t *testing.T) *inPlace {
	t.Helper()
	s := serving.ServeBy(t, serving.HTTPRoute, func(e *serving.Env) {
		e.Apply(`
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: model}
spec:
  replicas: 4
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      metadata: {annotations: {%[1]s: %[2]s, %[3]s: 4s}}
      spec: {containers: [{name: server, image: "example.com/model:v1", ports: [{name: http, containerPort: %[4]d}]}]}
    workerTemplate: {spec: {containers: [{name: server, image: "example.com/model:v1"}]}}
`, cluster.AnnotationTermination, serving.Longest+6*time.Second, cluster.AnnotationStartup, podserver.Port)
		e.Ready("model", 8)
	})
	s.BeginBy(&pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"25%", "50%", "100%"}, Traffic: serving.ByRoute()})
	c, err := s.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{Workload: s.Ref})
	require.NoError(t, err)
	return &inPlace{Release: s, stable: c.GetContext().GetStableRevision(), update: c.GetContext().GetUpdateRevision()}
}

// share returns the expected shares of both revisions.
func (p *inPlace) share(weight float64) load.Shares {
	shares := load.Shares{}
	if weight < 100 {
		shares[p.stable] = 100 - weight
	}
	if weight > 0 {
		shares[p.update] = weight
	}
	return shares
}

func (p *inPlace) Load(options load.Options) *load.Generator {
	p.T.Helper()
	options.LongEvery, options.LongFor = 100, serving.Longest
	options.Side = func(a podanswer.Answer) string { return a.Revision }
	return p.Release.Load(options)
}

// follows fails the test unless every request reaches the update revision, and no weight can change that.
func (p *inPlace) follows() {
	p.T.Helper()
	r, err := p.SetWeight(p.T.Context(), &pb.SetWeightRequest{Workload: p.Ref, ReleaseId: "r1", Weight: 40, Wait: serving.Long})
	assert.True(p.T, err == nil && !r.GetVerified() && r.GetReason() == "ShareFollowsGroups", "SetWeight 40 without a stable group: %v, %v", r, err)
	p.Weight(100)
	c, err := p.CalculateBatchContext(p.T.Context(), &pb.CalculateBatchContextRequest{Workload: p.Ref})
	if got := c.GetContext(); err != nil || got.GetTrafficBasis() != pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS || got.GetTrafficWeight() != 100 {
		p.T.Errorf("the share: %v, %v", got, err)
	}
}

// mustBeUnmarked fails the test if anything is left of the release, on leaders too.
func (p *inPlace) mustBeUnmarked() {
	p.T.Helper()
	p.MustBeRestored()
	pods, err := p.Kube.CoreV1().Pods(p.Namespace).List(p.T.Context(), metav1.ListOptions{LabelSelector: "lockstep.dev/serving"})
	if err != nil || len(pods.Items) > 0 {
		p.T.Errorf("%d leaders are marked, %v", len(pods.Items), err)
	}
}

// A complete release in place: the requested shares while groups of both revisions exist, a header route, a killed driver, the
// last batch, promotion. No request is lost, and none reaches a group that is not ready.
//
// Proves (test): Order of effects: down (share, drain, capacity), blue-green, in place.
func TestTrafficPartition(t *testing.T) {
	p := partition(t)
	g := p.Load(load.Options{Rate: 600, MatchEvery: 10, Match: http.Header{serving.Match: {"yes"}}})
	g.Begin(load.Phase{Name: "first batch, weight 0", Want: p.share(0)})
	p.Upgrade(0)
	p.Await(g, 2000)
	g.Begin(load.Phase{Name: "10 %", Want: p.share(10)})
	p.Weight(10)
	p.Await(g, 5000)
	g.Begin(load.Phase{Name: "header match", Want: p.share(10), WantMatch: p.update})
	route(p.Release, byHeader)
	p.Await(g, 5000)
	g.Begin(load.Phase{Name: "header match, second batch", Want: p.share(10), WantMatch: p.update})
	p.Upgrade(1)
	p.Await(g, 3000)
	g.Begin(load.Phase{Name: "50 %", Want: p.share(50), WantMatch: p.update})
	p.Weight(50)
	p.Await(g, 5000)
	g.Begin(load.Phase{Name: "driver killed", Want: p.share(50), WantMatch: p.update})
	p.Kill()
	p.Begin()
	p.AwaitSync()
	p.Await(g, 3000)
	g.Begin(load.Phase{Name: "last batch"})
	p.Upgrade(2)
	g.Begin(load.Phase{Name: "every group is updated", Want: p.share(100)})
	p.follows()
	p.Await(g, 3000)
	g.Begin(load.Phase{Name: "promoted", Want: p.share(100)})
	p.End(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	p.Await(g, 3000)
	p.Passes(g)
	p.mustBeUnmarked()
}

// Promoted while half of the groups are stable: they keep their share until the Service selects all leaders, and then LWS
// updates them, whether or not a driver is running.
//
// Proves: Order of effects, in place: early promotion, rollback.
func TestTrafficPartitionPromotedEarly(t *testing.T) {
	t.Parallel() // most of it is waiting for groups that end slowly
	p := partition(t)
	g := p.Load(load.Options{Rate: 400})
	p.Upgrade(0)
	p.Upgrade(1)
	p.Weight(50)
	g.Begin(load.Phase{Name: "50 %", Want: p.share(50)})
	p.Await(g, 2000)
	g.Begin(load.Phase{Name: "promotion, driver killed"})
	_, err := p.Finalize(t.Context(), &pb.FinalizeRequest{
		Workload: p.Ref, ReleaseId: "r1", Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE,
	})
	require.NoError(t, err)
	p.Kill()
	p.Begin()
	p.AwaitSync()
	p.End(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	g.Begin(load.Phase{Name: "promoted", Want: p.share(100)})
	p.Await(g, 2000)
	p.Passes(g)
	p.mustBeUnmarked()
}

// Rolled back with half of the groups updated: their requests are withdrawn before they are restarted. With all of them
// updated, LWS rolls them back as it updated them.
//
// Proves: Order of effects, in place: early promotion, rollback.
func TestTrafficPartitionRollback(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		batches int32
	}{{"half", 2}, {"all", 3}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := partition(t)
			g := p.Load(load.Options{Rate: 400})
			for batch := range tc.batches {
				p.Upgrade(batch)
			}
			if tc.batches < 3 {
				p.Weight(50)
				g.Begin(load.Phase{Name: "50 %", Want: p.share(50)})
				p.Await(g, 2000)
				g.Begin(load.Phase{Name: "rolling back", Want: p.share(0)})
			} else {
				g.Begin(load.Phase{Name: "100 %", Want: p.share(100)})
				p.Await(g, 2000)
				g.Begin(load.Phase{Name: "rolling back"})
			}
			p.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
			g.Begin(load.Phase{Name: "rolled back", Want: p.share(0)})
			p.Await(g, 2000)
			p.Passes(g)
			p.mustBeUnmarked()
		})
	}
}
