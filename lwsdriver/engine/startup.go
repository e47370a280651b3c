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
	// diagnoseAfter is how long caches may take to fill before the driver looks for the reason.
	diagnoseAfter = 500 * time.Millisecond
	// diagnosePeriod is how often it looks again.
	diagnosePeriod = 2 * time.Second
	// firstProbeTimeout bounds the request that every start waits for.
	firstProbeTimeout = 5 * time.Second
	// probeTimeout bounds later requests.
	probeTimeout = 30 * time.Second
)

// startup is why the caches are not filled. Informers only log it; callers should know.
type startup struct {
	mu    sync.Mutex
	asked bool  // the API server was asked, whatever its response
	err   error // of the contract; nil: no obstacle is known
}

// why returns the reason, nil if none is known; asked reports whether the API server was asked for one.
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

// diagnose looks for obstacles until the caches are filled and can be watched. No call is served before it has asked for the
// permission to watch; it checks lists only if the caches stay empty.
func (e *Engine) diagnose(ctx context.Context) {
	ask, limit := e.probeWatches, firstProbeTimeout
	timer := time.NewTimer(diagnoseAfter)
	defer timer.Stop()
	for {
		err := probe(ctx, ask, limit)
		if e.startup.set(err) && e.Filled() != nil && ctx.Err() == nil {
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

// probe returns the obstacle that a probe finds as an error of the contract.
func probe(ctx context.Context, ask func(context.Context) error, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return observe.ContractError(ask(ctx))
}

// probeAll returns why the caches can't be filled or watched, nil if nothing prevents it.
func (e *Engine) probeAll(ctx context.Context) error {
	if err := e.probeLists(ctx); err != nil {
		return err
	}
	return e.probeWatches(ctx)
}

// probeLists lists one object of each kind while the caches are not filled.
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

// probeWatches asks whether the driver may watch. Without that permission informers list once and then seem to work; nothing else
// reports it.
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
			return nil // every account may ask, unless the cluster's administrator removed that
		}
		if err != nil {
			return fmt.Errorf("ask for the permission to watch %s: %w", resource, err)
		}
		if !answer.Status.Allowed {
			return drivererr.New(pb.ErrorReason_ERROR_REASON_FORBIDDEN,
				"the driver's account may not watch resource %q%s, so its caches would not be up to date: grant it list and watch, as config/base does",
				resource, inNamespace(e.config.Namespace))
		}
	}
	return nil
}

// inNamespace names a namespace in a message. Empty: all of them.
func inNamespace(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + namespace
}

// Filled returns nil once the caches are filled and may be watched, and the obstacle until then.
func (e *Engine) Filled() error {
	asked, err := e.startup.why()
	switch synced := e.Observer.Caches.Synced(); {
	case err != nil && !synced, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_FORBIDDEN:
		return err
	case synced && asked: // once the caches are filled, a failed probe is no reason to refuse calls
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the driver has just started and its caches are not filled yet")
}

// Ready returns nil once calls can be served, and why they can't until then.
func (e *Engine) Ready() error {
	if err := e.Filled(); err != nil {
		return err
	}
	if !e.leads() {
		return standby()
	}
	return nil
}
