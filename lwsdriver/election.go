// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The times of a Lease, as Kubernetes' own controllers have them: a leader that can't renew it for renewDeadline stops, and
// another one starts leaseDuration after the last renewal.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// leaseName is the Lease of the leader. A server of one namespace has its own, since it excludes no server of another.
const leaseName = "lockstep"

// election is the driver's part in electing a leader.
type election struct {
	lock resourcelock.Interface
	log  *slog.Logger

	leads   atomic.Pointer[leaderelection.LeaderElector] // nil unless it leads
	elected chan struct{}                                // closed once it leads
}

// newElection returns nil without a Lease to elect by. The lock has a client of its own: renewals must not wait for the requests
// of releases.
func newElection(config *rest.Config, o Options) (*election, error) {
	if o.LeaseNamespace == "" {
		return nil, nil //nolint:nilnil // no election is a mode of its own
	}
	name := leaseName
	if o.Namespace != "" {
		name += "-" + o.Namespace
	}
	// The host is for users. Two servers with the same identity would both lead.
	host, _ := os.Hostname()
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.LeaseNamespace, name,
		resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())}, config, renewDeadline)
	if err != nil {
		return nil, fmt.Errorf("make the lock of the Lease: %w", err)
	}
	return &election{lock: lock, log: o.Logger, elected: make(chan struct{})}, nil
}

// isLeader reports whether the driver may act: it holds the Lease, and has renewed it within renewDeadline. A process that was suspended
// for longer learns here that it no longer leads, before the elector runs again.
func (e *election) isLeader() bool {
	if e == nil {
		return true
	}
	elector := e.leads.Load()
	// The argument says how long the Lease may have expired. A negative one fails before another server may take it.
	return elector != nil && elector.IsLeader() && elector.Check(renewDeadline-leaseDuration) == nil
}

// errLost is the error of a write that came too late.
var errLost = drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "this server has lost the Lease since it decided on the write: another one acts")

// guardWrites returns a transport that refuses writes unless the driver leads. A write may have waited for its turn, or for a retry, since it
// was decided.
func (e *election) guardWrites(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet && !e.isLeader() {
			return nil, errLost
		}
		return next.RoundTrip(r)
	})
}

// run takes part until ctx ends, or the Lease is lost.
func (e *election) run(ctx context.Context) error {
	lease, identity := e.lock.Describe(), e.lock.Identity()
	var elector *leaderelection.LeaderElector
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				e.log.Info("leading", slog.String("lease", lease), slog.String("identity", identity))
				e.leads.Store(elector)
				// Run returns once the Lease is lost, so this happens once.
				close(e.elected)
			},
			OnStoppedLeading: func() { e.leads.Store(nil) },
			OnNewLeader: func(leader string) {
				if leader != identity {
					e.log.Info("standing by", slog.String("lease", lease), slog.String("leader", leader))
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("elect a leader: %w", err)
	}
	elector.Run(ctx)
	if ctx.Err() == nil {
		return fmt.Errorf("lost the Lease %s: another server continues", lease)
	}
	return nil
}

// runElected runs the driver as long as it leads. It campaigns once the caches are filled: a leader without them would keep the
// others from acting. It keeps the Lease until the last write, and then releases it.
func (d *Driver) runElected(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// The Lease outlives ctx: the last writes of the engine must still exclude another leader.
	electing, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	var lost error
	var running sync.WaitGroup
	running.Go(func() {
		if cache.WaitForCacheSync(electing.Done(), func() bool { return d.engine.Filled() == nil }) {
			lost = d.options.election.run(electing)
		}
		stop()
	})
	d.engine.Run(ctx)
	release()
	running.Wait()
	return lost
}
