// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// diagnose asks for one object of each kind, as the informers do for all, until they have got them.
func (d *Driver) diagnose(ctx context.Context) {
	timer := time.NewTimer(diagnoseAfter)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if d.Synced() {
			return
		}
		if err := d.probe(ctx); d.startup.set(err) && ctx.Err() == nil {
			d.log.Warn("not ready", slog.Any("error", err))
		}
		timer.Reset(diagnosePeriod)
	}
}

// probe returns why the caches can't be filled, as an error of the contract; nil if nothing is in the way.
func (d *Driver) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
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
		return contractError(fmt.Errorf("the driver can't fill its caches: %w", err))
	}
	return nil
}

// notServing returns why calls can't be answered yet, nil if they can.
func (d *Driver) notServing() error {
	if d.Synced() {
		return nil
	}
	if err := d.startup.why(); err != nil {
		return err
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the driver has just started and its caches are not filled yet")
}
