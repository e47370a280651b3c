// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/utils/lru"

	"github.com/lockstep-rollouts/lockstep/traffic/fair"
)

const (
	// perSource is how many requests a second one address or one user may cause, with bursts of twice as many.
	perSource = 50
	// maxInFlight bounds the requests that the API server answers at a time.
	maxInFlight = 32
)

// ErrBusy is wrapped by errors of requests that were not admitted in time, since their address or user causes too many.
var ErrBusy = errors.New("too many requests are waiting")

type sourceKey struct{}

// WithSource returns a context of requests that wait for the turn of a source. Without it they wait for that of the call's user.
func WithSource(ctx context.Context, source string) context.Context {
	return context.WithValue(ctx, sourceKey{}, source)
}

// LimitRequests returns a configuration of clients whose requests wait for their turn. One source does not use the turns of others.
func LimitRequests(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	// The limiter takes the place of client-go's, which lets one source use the turns of all others.
	config.QPS, config.RateLimiter = -1, nil
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &limiter{next: next, rates: NewRates(perSource), inFlight: fair.NewSlots(maxInFlight)}
	})
	return config
}

// AccountOf returns what a user's calls, connections and reviews count for. The service accounts of a namespace count together, also those that a mesh
// names spiffe://<trust domain>/ns/<namespace>/sa/<account>: who may edit it makes as many as they like.
func AccountOf(u user.Info) string {
	name := u.GetName()
	if namespace, _, err := serviceaccount.SplitUsername(name); err == nil {
		return serviceaccount.MakeNamespaceGroupName(namespace)
	}
	if namespace, _, found := strings.Cut(name, "/sa/"); found && strings.HasPrefix(name, "spiffe://") {
		return namespace
	}
	return name
}

type limiter struct {
	next     http.RoundTripper
	rates    *Rates
	inFlight *fair.Slots
}

// RoundTrip implements http.RoundTripper.
func (t *limiter) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	source, given := ctx.Value(sourceKey{}).(string)
	if u := UserOf(ctx); !given && u != nil {
		source = AccountOf(u)
	}
	// The rate comes before the slot, so that a source over its rate holds none.
	if err := t.rates.Of(source).Wait(ctx); err != nil {
		return nil, fmt.Errorf("%w for %q: %w", ErrBusy, source, err)
	}
	if !t.inFlight.Acquire(ctx, source) {
		return nil, fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
	defer t.inFlight.Release(source)
	return t.next.RoundTrip(r) //nolint:wrapcheck // the client's own
}

// maxSources bounds the sources that are remembered.
const maxSources = 4096

// Rates bound what each source may do. A burst of twice the rate is allowed. The source that asked longest ago is forgotten, and begins
// anew.
type Rates struct {
	PerSecond int
	sources   *lru.Cache // *rate.Limiter by source
}

// NewRates returns a rate for each source.
func NewRates(perSecond int) *Rates { return &Rates{perSecond, lru.New(maxSources)} }

// Of returns the limiter of a source.
func (r *Rates) Of(source string) *rate.Limiter {
	// Two calls of a new source at once may make two limiters. One of them is forgotten, which costs at most a burst.
	known, _ := r.sources.Get(source)
	limiter, ok := known.(*rate.Limiter)
	if !ok {
		limiter = rate.NewLimiter(rate.Limit(r.PerSecond), 2*r.PerSecond)
		r.sources.Add(source, limiter)
	}
	return limiter
}
