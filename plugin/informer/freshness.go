// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// tick is the interval at which freshness is judged, besides at every decision.
	tick = time.Second
	// suspended is how long this process must have stood still to count as suspended.
	suspended = 10 * tick
)

// Freshness judges the caches of a process.
type Freshness struct {
	changed func()
	sources []*Source
	now     func() time.Time
	metric  *prometheus.GaugeVec

	mu sync.Mutex
	// running is when the process was last seen to run, resumed when it was after it had stood still since the time asleep.
	running, asleep, resumed time.Time
}

// Stale is a cache that is not confirmed.
type Stale struct {
	Resource schema.GroupVersionResource
	Since    time.Time
	Why      error
}

// NewFreshness returns a Freshness of the caches of sources. changed is called when one becomes stale or fresh; it must not block.
func NewFreshness(changed func(), sources ...*Source) *Freshness {
	return &Freshness{changed: changed, sources: sources, now: time.Now, metric: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "lockstep", Name: "cache_stale",
		Help: "1 while a cache is not confirmed by the API server, so that no release is promoted by what it holds, else 0. By resource.",
	}, []string{"resource"})}
}

// Metrics returns a metric of the caches that are judged.
func (f *Freshness) Metrics() prometheus.Collector { return f.metric }

// Run notices when caches become stale and fresh, until ctx ends.
func (f *Freshness) Run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var before []*Source
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var now []*Source
		for _, s := range f.sources {
			value := 0.0
			if len(f.Of(s)) > 0 {
				now, value = append(now, s), 1
			}
			f.metric.WithLabelValues(s.Resource.Resource).Set(value)
		}
		if !slices.Equal(before, now) {
			f.changed()
		}
		before = now
	}
}

// wake notes that the process runs, and whether it was suspended before: then its caches hold what they held, although their watches seem
// to be open.
func (f *Freshness) wake() (since, resumed time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if !f.running.IsZero() && now.Sub(f.running) > suspended {
		f.asleep, f.resumed = f.running, now
	}
	f.running = now
	return f.asleep, f.resumed
}

// Err returns an error that names the stale caches, nil if all are fresh.
func (f *Freshness) Err() error {
	stale := f.Of()
	all := make([]error, 0, len(stale))
	for _, s := range stale {
		all = append(all, fmt.Errorf("the cache of %s is not confirmed since %s: %w", s.Resource.GroupResource(), s.Since.UTC().Format(time.RFC3339), s.Why))
	}
	return errors.Join(all...)
}

// Of returns the stale caches among those of sources, without sources: of all.
func (f *Freshness) Of(sources ...*Source) (stale []Stale) {
	asleep, resumed := f.wake()
	if len(sources) == 0 {
		sources = f.sources
	}
	for _, s := range sources {
		since, why := s.stale()
		if f.now().Sub(resumed) < settleTime {
			since, why = asleep, errors.New("the driver was suspended, and reads what it has missed")
		}
		if why != nil {
			stale = append(stale, Stale{s.Resource, since, why})
		}
	}
	return stale
}
