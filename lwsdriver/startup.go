// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

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

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// diagnoseAfter is how long caches may take to fill before a driver looks for the reason.
	diagnoseAfter = 500 * time.Millisecond
	// diagnosePeriod is how often it looks again.
	diagnosePeriod = 2 * time.Second
)

// startup is why the caches are not filled. Informers retry in silence, or tell their log only; callers should know.
type startup struct {
	mu  sync.Mutex
	err error // of the contract; nil: it is only early
}

// why returns the reason, nil if none is known.
func (s *startup) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// set keeps the reason and says whether it is a new one.
func (s *startup) set(err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news = err != nil && (s.err == nil || s.err.Error() != err.Error())
	s.err = err
	return news
}

// diagnose looks for what is in the way until the caches are filled and can be kept so.
func (d *Driver) diagnose(ctx context.Context) {
	timer := time.NewTimer(diagnoseAfter)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		err := d.probe(ctx)
		done := err == nil && d.Synced()
		if d.Synced() && drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_FORBIDDEN {
			err = nil // the caches are filled; that something could not be asked is no reason to refuse calls
		}
		if d.startup.set(err) && ctx.Err() == nil {
			d.log.Warn("not ready", slog.Any("error", err))
		}
		if done {
			return
		}
		timer.Reset(diagnosePeriod)
	}
}

// probe returns why the caches can't be filled or kept up, as an error of the contract; nil if nothing is in the way.
func (d *Driver) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := d.probeLists(ctx)
	if err == nil {
		err = d.probeWatches(ctx)
	}
	return contractError(err)
}

// probeLists asks for one object of each kind, as the informers do for all, while they have not got them.
func (d *Driver) probeLists(ctx context.Context) error {
	if d.Synced() {
		return nil
	}
	namespace, one := d.options.namespace, metav1.ListOptions{Limit: 1}
	_, err := d.applier.client.LeaderworkersetV1().LeaderWorkerSets(namespace).List(ctx, one)
	if apierrors.IsNotFound(err) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_API_MISSING,
			"LeaderWorkerSet (%s) is not installed in this cluster: install LWS v0.9.0 or later", lws.GroupVersion)
	}
	if err == nil {
		_, err = d.core.CoreV1().Pods(namespace).List(ctx, one)
	}
	if err == nil {
		_, err = d.core.AppsV1().ControllerRevisions(namespace).List(ctx, one)
	}
	if err != nil {
		return fmt.Errorf("the driver can't fill its caches: %w", err)
	}
	return nil
}

// probeWatches asks whether the driver may watch. Without, informers list once and then look alive while they are
// not; nothing else would tell.
func (d *Driver) probeWatches(ctx context.Context) error {
	for _, resource := range []schema.GroupResource{
		{Group: lws.GroupVersion.Group, Resource: "leaderworkersets"}, {Resource: "pods"},
		{Group: appsv1.GroupName, Resource: "controllerrevisions"},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: d.options.namespace, Verb: "watch", Group: resource.Group, Resource: resource.Resource,
			},
		}}
		answer, err := d.core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) {
			return nil // everybody may ask, unless the cluster's administrator thinks otherwise
		}
		if err != nil {
			return fmt.Errorf("ask for the permission to watch %s: %w", resource, err)
		}
		if !answer.Status.Allowed {
			return drivererr.New(pb.ErrorReason_ERROR_REASON_FORBIDDEN,
				"the driver can't keep its caches: it may not watch resource %q: bind config/rbac to its account", resource)
		}
	}
	return nil
}

// notServing returns why calls can't be answered yet, nil if they can.
func (d *Driver) notServing() error {
	if err := d.startup.why(); err != nil {
		return err
	}
	if d.Synced() {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the driver has just started and its caches are not filled yet")
}
