// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
)

// inPlace is a release in place, and its two revisions.
type inPlace struct {
	*served

	stable, update string
}

// partition creates a workload that can be updated in place under requests: its leaders serve for a while after their
// deletion, and become ready after their workers. It begins release r1.
func partition(t *testing.T) *inPlace {
	t.Helper()
	s := serveBy(t, httpRoute, func(e *env) {
		e.apply(`
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
`, cluster.AnnotationTermination, longest+6*time.Second, cluster.AnnotationStartup, podserver.Port)
		e.ready("model", 8)
	})
	s.beginBy(&pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"25%", "50%", "100%"}, Traffic: byRoute()})
	c, err := s.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{Workload: s.ref})
	if err != nil {
		t.Fatal(err)
	}
	return &inPlace{served: s, stable: c.GetContext().GetStableRevision(), update: c.GetContext().GetUpdateRevision()}
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

func (p *inPlace) load(options load.Options) *load.Generator {
	p.t.Helper()
	options.LongEvery, options.LongFor = 100, longest
	options.Side = func(a podserver.Answer) string { return a.Revision }
	return p.served.load(options)
}

// follows fails the test unless every request reaches the update revision, and no weight can change that.
func (p *inPlace) follows() {
	p.t.Helper()
	r, err := p.SetWeight(p.t.Context(), &pb.SetWeightRequest{Workload: p.ref, ReleaseId: "r1", Weight: 40, Wait: long})
	if err != nil || r.GetVerified() || r.GetReason() != "ShareFollowsGroups" {
		p.t.Errorf("SetWeight 40 without a stable group: %v, %v", r, err)
	}
	p.weight(100)
	c, err := p.CalculateBatchContext(p.t.Context(), &pb.CalculateBatchContextRequest{Workload: p.ref})
	if got := c.GetContext(); err != nil || got.GetTrafficBasis() != pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS || got.GetTrafficWeight() != 100 {
		p.t.Errorf("the share: %v, %v", got, err)
	}
}

// end is finalize for groups that are updated one after another.
func (p *inPlace) end(intent pb.FinalizeIntent) {
	p.t.Helper()
	var r *pb.FinalizeResponse
	for range 4 {
		var err error
		r, err = p.Finalize(p.t.Context(), &pb.FinalizeRequest{Workload: p.ref, ReleaseId: "r1", Intent: intent, Wait: long})
		if err != nil {
			p.t.Fatalf("Finalize: %v", err)
		}
		if r.GetDone() {
			return
		}
	}
	p.t.Fatalf("Finalize: %v", r)
}

// mustBeUnmarked fails the test if anything is left of the release, on leaders too.
func (p *inPlace) mustBeUnmarked() {
	p.t.Helper()
	p.mustBeRestored()
	pods, err := p.kube.CoreV1().Pods(p.namespace).List(p.t.Context(), metav1.ListOptions{LabelSelector: "lockstep.dev/serving"})
	if err != nil || len(pods.Items) > 0 {
		p.t.Errorf("%d leaders are marked, %v", len(pods.Items), err)
	}
}

// A complete release in place: the requested shares while groups of both revisions exist, a header route, a killed driver, the
// last batch, promotion. No request is lost, and none reaches a group that is not ready.
func TestTrafficPartition(t *testing.T) {
	p := partition(t)
	g := p.load(load.Options{Rate: 600, MatchEvery: 10, Match: http.Header{match: {"yes"}}})
	g.Begin(load.Phase{Name: "first batch, weight 0", Want: p.share(0)})
	p.upgrade(0)
	p.await(g, 2000)
	g.Begin(load.Phase{Name: "10 %", Want: p.share(10)})
	p.weight(10)
	p.await(g, 5000)
	g.Begin(load.Phase{Name: "header match", Want: p.share(10), WantMatch: p.update})
	if _, err := p.SetHeaderRoute(t.Context(), &pb.SetHeaderRouteRequest{
		Workload: p.ref, ReleaseId: "r1", Name: "testers",
		Matches: []*pb.HeaderMatch{{Name: match, Value: &pb.HeaderMatch_Exact{Exact: "yes"}}},
	}); err != nil {
		t.Fatal(err)
	}
	p.await(g, 5000)
	g.Begin(load.Phase{Name: "header match, second batch", Want: p.share(10), WantMatch: p.update})
	p.upgrade(1)
	p.await(g, 3000)
	g.Begin(load.Phase{Name: "50 %", Want: p.share(50), WantMatch: p.update})
	p.weight(50)
	p.await(g, 5000)
	g.Begin(load.Phase{Name: "driver killed", Want: p.share(50), WantMatch: p.update})
	p.Kill()
	p.Begin()
	p.AwaitSync()
	p.await(g, 3000)
	g.Begin(load.Phase{Name: "last batch"})
	p.upgrade(2)
	g.Begin(load.Phase{Name: "every group is updated", Want: p.share(100)})
	p.follows()
	p.await(g, 3000)
	g.Begin(load.Phase{Name: "promoted", Want: p.share(100)})
	p.end(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	p.await(g, 3000)
	p.passes(g)
	p.mustBeUnmarked()
}

// Promoted while half of the groups are stable: they keep their share until the Service selects all leaders, and then LWS
// updates them, whether or not a driver is running.
func TestTrafficPartitionPromotedEarly(t *testing.T) {
	t.Parallel() // most of it is waiting for groups that end slowly
	p := partition(t)
	g := p.load(load.Options{Rate: 400})
	p.upgrade(0)
	p.upgrade(1)
	p.weight(50)
	g.Begin(load.Phase{Name: "50 %", Want: p.share(50)})
	p.await(g, 2000)
	g.Begin(load.Phase{Name: "promotion, driver killed"})
	if _, err := p.Finalize(t.Context(), &pb.FinalizeRequest{
		Workload: p.ref, ReleaseId: "r1", Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE,
	}); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	p.Begin()
	p.AwaitSync()
	p.end(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	g.Begin(load.Phase{Name: "promoted", Want: p.share(100)})
	p.await(g, 2000)
	p.passes(g)
	p.mustBeUnmarked()
}

// Rolled back with half of the groups updated: their requests are withdrawn before they are restarted. With all of them
// updated, LWS rolls them back as it updated them.
func TestTrafficPartitionRollback(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		batches int32
	}{{"half", 2}, {"all", 3}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := partition(t)
			g := p.load(load.Options{Rate: 400})
			for batch := range tc.batches {
				p.upgrade(batch)
			}
			if tc.batches < 3 {
				p.weight(50)
				g.Begin(load.Phase{Name: "50 %", Want: p.share(50)})
				p.await(g, 2000)
				g.Begin(load.Phase{Name: "rolling back", Want: p.share(0)})
			} else {
				g.Begin(load.Phase{Name: "100 %", Want: p.share(100)})
				p.await(g, 2000)
				g.Begin(load.Phase{Name: "rolling back"})
			}
			p.end(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
			g.Begin(load.Phase{Name: "rolled back", Want: p.share(0)})
			p.await(g, 2000)
			p.passes(g)
			p.mustBeUnmarked()
		})
	}
}
