// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/serving"
)

func blueGreen(batches ...string) *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: pb.Style_STYLE_BLUE_GREEN, Batches: batches, Traffic: serving.ByRoute()}
}

// A second set beside the first: a header route for testers, then all requests to green, back to blue, and to green again; and
// the promotion, in which all of the user's own groups are replaced at once, since they serve no requests. No request is lost.
//
// Proves (test): Order of effects: down (share, drain, capacity), blue-green, in place.
func TestTrafficBlueGreen(t *testing.T) {
	s := serving.Serve(t)
	g := s.Load(load.Options{Rate: 600, LongEvery: 100, LongFor: serving.Longest, MatchEvery: 10, Match: http.Header{serving.Match: {"yes"}}})
	blue := load.Shares{"model": 100}
	g.Begin(load.Phase{Name: "blue alone", Want: blue})
	s.Await(g, 500)
	policy := blueGreen("50%", "100%")
	policy.BlueGreen = &pb.BlueGreenPolicy{ScaleDownDelay: durationpb.New(serving.Longest)}
	name := s.BeginBy(policy)
	green := load.Shares{name: 100}
	g.Begin(load.Phase{Name: "half of green, weight asked for too early", Want: blue})
	s.Upgrade(0)
	v, err := s.SetWeight(t.Context(), &pb.SetWeightRequest{Workload: s.Ref, ReleaseId: "r1", Weight: 100})
	assert.True(t, err == nil && !v.GetVerified() && v.GetReason() == "GroupsNotReady", "SetWeight before green is complete: %v, %v", v, err)
	s.Await(g, 2000)
	_, err = s.Reset(t.Context(), &pb.ResetRequest{Workload: s.Ref, ReleaseId: "r1", Wait: serving.Long})
	require.NoError(t, err)
	g.Begin(load.Phase{Name: "preview by header", Want: blue, WantMatch: name})
	s.Upgrade(1)
	route(s, byHeader)
	s.Await(g, 3000)
	route(s)
	for _, to := range []struct {
		phase  string
		weight int32
		want   load.Shares
	}{{"switched to green", 100, green}, {"and back", 0, blue}, {"and to green again", 100, green}} {
		g.Begin(load.Phase{Name: to.phase, Want: to.want})
		s.Weight(to.weight)
		s.Await(g, 3000)
	}
	g.Begin(load.Phase{Name: "promoted", Want: blue})
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	s.Await(g, 3000)
	s.Passes(g)
	s.MustBeRestored()
}

// A rollback in mid-promotion moves the requests back.
//
// Proves: Order of effects, handover; blue-green rolled back in mid-promotion.
func TestTrafficBlueGreenRolledBack(t *testing.T) {
	blue := load.Shares{"model": 100}
	s := serving.Serve(t)
	g := s.Load(load.Options{Rate: 400, LongEvery: 100, LongFor: serving.Longest})
	policy := blueGreen("100%")
	policy.MinReady = durationpb.New(serving.Longest) // it is not over before
	name := s.BeginBy(policy)
	s.Upgrade(0)
	g.Begin(load.Phase{Name: "switched", Want: load.Shares{name: 100}})
	s.Weight(100)
	_, err := s.Finalize(t.Context(), &pb.FinalizeRequest{
		Workload: s.Ref, ReleaseId: "r1", Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE,
	})
	require.NoError(t, err)
	await.Nil(t, "blue is replaced while green has the requests", func(ctx context.Context) error {
		pods, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: lws.SetNameLabelKey + "=" + s.Name})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if strings.HasSuffix(pods.Items[i].Spec.Containers[0].Image, ":v2") {
				return nil
			}
		}
		return errors.New("no pod has the new image")
	})
	g.Begin(load.Phase{Name: "to blue again"})
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	g.Begin(load.Phase{Name: "rolled back", Want: blue})
	s.Await(g, 2000)
	s.Passes(g)
	s.MustBeRestored()
}

// The second set is adopted: requests reach green through the canary's Service first, and finally through the user's, with or
// without a selector that names the workload. In the delay before that they return to blue. No request is lost.
//
// Proves: Order of effects, handover; blue-green rolled back in mid-promotion.
func TestTrafficBlueGreenAdopt(t *testing.T) {
	blue := load.Shares{"model": 100}
	adopt := func(delay time.Duration) *pb.ReleasePolicy {
		p := blueGreen("100%")
		p.BlueGreen = &pb.BlueGreenPolicy{Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT, ScaleDownDelay: durationpb.New(delay)}
		return p
	}
	for _, pinned := range []bool{false, true} {
		t.Run(fmt.Sprintf("adopted, named by the Service %t", pinned), func(t *testing.T) {
			t.Parallel()
			s := serving.Serve(t)
			if pinned {
				pin(s, "model")
			}
			g := s.Load(load.Options{Rate: 600, LongEvery: 100, LongFor: serving.Longest})
			g.Begin(load.Phase{Name: "blue alone", Want: blue})
			s.Await(g, 1000)
			name := s.BeginBy(adopt(serving.Longest))
			green := load.Shares{name: 100}
			s.Upgrade(0)
			g.Begin(load.Phase{Name: "to green"})
			s.End(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
			g.Begin(load.Phase{Name: "adopted", Want: green})
			s.Await(g, 3000)
			s.Passes(g)
			if pinned {
				s.User["Service"] = strings.ReplaceAll(s.User["Service"], `"leaderworkerset.sigs.k8s.io/name":"model"`,
					`"leaderworkerset.sigs.k8s.io/name":"`+name+`"`)
			}
			s.MustBeRestoredExcept(name)
			_, err := s.Sets().Get(t.Context(), s.Name, metav1.GetOptions{})
			assert.True(t, apierrors.IsNotFound(err), "blue is still there (%v)", err)
		})
	}
	t.Run("rolled back in the delay", func(t *testing.T) {
		t.Parallel()
		s := serving.Serve(t)
		g := s.Load(load.Options{Rate: 600, LongEvery: 100, LongFor: serving.Longest})
		g.Begin(load.Phase{Name: "blue alone", Want: blue})
		s.Await(g, 1000)
		name := s.BeginBy(adopt(time.Hour))
		s.Upgrade(0)
		g.Begin(load.Phase{Name: "to green"})
		_, err := s.Finalize(t.Context(), &pb.FinalizeRequest{Workload: s.Ref, ReleaseId: "r1", Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE})
		require.NoError(t, err)
		await.Nil(t, "blue is on standby", func(ctx context.Context) error {
			r, err := s.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: s.Ref})
			if err == nil && r.GetContext().GetReason() != "WaitingForScaleDownDelay" {
				err = fmt.Errorf("the context is %v", r.GetContext())
			}
			return err
		})
		g.Begin(load.Phase{Name: "blue is on standby", Want: load.Shares{name: 100}})
		s.Await(g, 3000)
		g.Begin(load.Phase{Name: "rolled back", Want: blue})
		s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
		s.Await(g, 3000)
		s.Passes(g)
		s.MustBeRestored()
	})
}

// pin adds the workload's name to the selector of the user's Service.
func pin(s *serving.Release, name string) {
	s.T.Helper()
	patch := fmt.Appendf(nil, `{"spec": {"selector": {"leaderworkerset.sigs.k8s.io/name": %q}}}`, name)
	_, err := s.Kube.CoreV1().Services(s.Namespace).Patch(s.T.Context(), "stable", types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(s.T, err)
	s.User = s.Carriers()
}
