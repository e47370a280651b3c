// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// diagnoseAfter is how long caches may take to fill before a driver looks for the reason.
	diagnoseAfter = 500 * time.Millisecond
	// diagnosePeriod is how often it looks again.
	diagnosePeriod = 2 * time.Second
	// firstProbeTimeout bounds the one question that every start waits for.
	firstProbeTimeout = 5 * time.Second
	// probeTimeout bounds the later ones.
	probeTimeout = 30 * time.Second
)

// startup is why the caches are not filled. Informers retry in silence, or tell their log only; callers should know.
type startup struct {
	mu    sync.Mutex
	asked bool  // the cluster was asked, whatever it answered
	err   error // of the contract; nil: it is only early
}

// why returns the reason, nil if none is known; asked reports whether anybody looked for one.
func (s *startup) why() (asked bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.err
}

// set keeps the reason and reports whether it is a new one.
func (s *startup) set(err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news = err != nil && (s.err == nil || s.err.Error() != err.Error())
	s.asked, s.err = true, err
	return news
}

// diagnose looks for what is in the way until the caches are filled and can be kept so. Nobody is served before it has
// asked whether they can be kept; what fills them is only looked into where they stay empty.
func (e *Engine) diagnose(ctx context.Context) {
	ask, limit := e.probeWatches, firstProbeTimeout
	timer := time.NewTimer(diagnoseAfter)
	defer timer.Stop()
	for {
		err := inquire(ctx, ask, limit)
		if e.startup.set(err) && e.Ready() != nil && ctx.Err() == nil {
			e.config.Log.Warn("not ready", slog.Any("error", err))
		}
		if err == nil && e.Observer.Caches.Synced() {
			return
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		ask, limit = e.probeAll, probeTimeout
		timer.Reset(diagnosePeriod)
	}
}

// inquire asks, and returns what is in the way as an error of the contract.
func inquire(ctx context.Context, ask func(context.Context) error, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return observe.ContractError(ask(ctx))
}

// probeAll returns why the caches can't be filled or kept up; nil if nothing is in the way.
func (e *Engine) probeAll(ctx context.Context) error {
	if err := e.probeLists(ctx); err != nil {
		return err
	}
	return e.probeWatches(ctx)
}

// probeLists asks for one object of each kind, as the informers do for all, while they have not got them.
func (e *Engine) probeLists(ctx context.Context) error {
	if e.Observer.Caches.Synced() {
		return nil
	}
	namespace, one := e.config.Namespace, metav1.ListOptions{Limit: 1}
	_, err := e.config.Sets.LeaderworkersetV1().LeaderWorkerSets(namespace).List(ctx, one)
	if apierrors.IsNotFound(err) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_API_MISSING,
			"LeaderWorkerSet (%s) is not installed in this cluster: install LWS v0.9.0 or later", lws.GroupVersion)
	}
	if err == nil {
		_, err = e.config.Core.CoreV1().Pods(namespace).List(ctx, one)
	}
	if err == nil {
		_, err = e.config.Core.AppsV1().ControllerRevisions(namespace).List(ctx, one)
	}
	if err != nil {
		return fmt.Errorf("the driver can't fill its caches: %w", err)
	}
	return nil
}

// probeWatches asks whether the driver may watch. Without, informers list once and then look alive while they are
// not; nothing else would tell.
func (e *Engine) probeWatches(ctx context.Context) error {
	for _, resource := range []schema.GroupResource{
		{Group: lws.GroupVersion.Group, Resource: "leaderworkersets"}, {Resource: "pods"},
		{Group: appsv1.GroupName, Resource: "controllerrevisions"},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: e.config.Namespace, Verb: "watch", Group: resource.Group, Resource: resource.Resource,
			},
		}}
		answer, err := e.config.Core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) {
			return nil // everybody may ask, unless the cluster's administrator thinks otherwise
		}
		if err != nil {
			return fmt.Errorf("ask for the permission to watch %s: %w", resource, err)
		}
		if !answer.Status.Allowed {
			return drivererr.New(pb.ErrorReason_ERROR_REASON_FORBIDDEN,
				"the driver can't keep its caches: it may not watch resource %q: bind config/rbac, which lets it list and watch, to its account", resource)
		}
	}
	return nil
}

// Ready returns nil once calls can be answered, and why they can't be until then.
func (e *Engine) Ready() error {
	asked, err := e.startup.why()
	switch synced := e.Observer.Caches.Synced(); {
	case err != nil && !synced, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_FORBIDDEN:
		return err
	case synced && asked: // once the caches are filled, that something could not be asked is no reason to refuse calls
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the driver has just started and its caches are not filled yet")
}
