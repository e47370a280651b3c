// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"golang.org/x/time/rate"
	"k8s.io/utils/lru"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// DefaultUserQPS is Options.UserQPS if that is 0: a host with hundreds of releases makes a few calls a second.
	DefaultUserQPS = 100
	// maxUsers bounds the users that are remembered: the one that called longest ago is forgotten, and begins anew.
	maxUsers = 4096
)

// userRates bound the calls of each user. A burst of twice the rate is allowed, for a host that begins.
type userRates struct {
	qps   int
	users *lru.Cache // *rate.Limiter by name
}

func newUserRates(qps int) *userRates { return &userRates{qps, lru.New(maxUsers)} }

// take returns an error if the user has called too often.
func (r *userRates) take(user string) error {
	limiter := rate.NewLimiter(rate.Limit(r.qps), 2*r.qps)
	if known, ok := r.users.Get(user); ok {
		limiter, _ = known.(*rate.Limiter)
	} else {
		r.users.Add(user, limiter)
	}
	if limiter.Allow() {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_RATE_LIMITED,
		"user %q makes more than %d calls a second: call less often, or raise --user-qps of the driver", user, r.qps)
}
