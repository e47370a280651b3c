// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// MaxSilence is how long a silent watch counts as fresh: the API server sends a bookmark about once a minute, and one may be late.
const MaxSilence = 2 * time.Minute

// catchUpTime is how long a cache may take to read what it has missed, after it had no watch or the process was suspended. The API server
// sends that at once, from memory. A bookmark ends it.
const catchUpTime = 5 * time.Second

// reopenTime is how long it may take to open the next watch once one has ended, as each does after some minutes.
const reopenTime = time.Second

// Source lists and watches one resource for an informer, and knows how fresh the cache is that the informer fills.
//
// A cache is fresh while its watch is open and the API server has sent something over it, if only a bookmark, within [MaxSilence]. The
// reflector hides an interrupted watch: it asks again without an error, as after HTTP status 429.
type Source struct {
	// Resource is what the informer caches.
	Resource schema.GroupVersionResource

	lw cache.ListerWatcher
	// optional is true if the API may be removed again, after which there is nothing to be confirmed.
	optional bool

	mu sync.Mutex
	// confirmed is when the API server sent something last, zero if it never did.
	confirmed time.Time
	// watched is true once a watch was opened.
	watched bool
	// ended is when the last watch has ended, zero while one is open that has sent all objects.
	ended time.Time
	// err is why the last list or watch failed, nil if it did not.
	err error
	// failed is when that began, or since when the cache had no watch when the present one was opened, at mended.
	failed, mended time.Time
	// shows reports whether the cache has a change that it lacked at behind, although the API server had made it at version. Nil means that none is
	// known.
	shows   func() bool
	version string
	behind  time.Time
}

// client is a client of one resource, typed or dynamic.
type client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// NewSource returns a Source of the objects that a client lists with a label selector, empty: all of them. clientset is what made the
// client: the fakes among them can't stream lists.
func NewSource[L runtime.Object](resource schema.GroupVersionResource, clientset any, c client[L], selector string) *Source {
	s := &Source{Resource: resource}
	s.lw = cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			list, err := c.List(ctx, o)
			if s.noteAnswer(ctx, err); err == nil {
				s.confirm(nil)
				s.noteEnded() // a list keeps nothing up to date
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			w, err := c.Watch(ctx, o)
			// After most errors of a streamed list the reflector lists at once, since older API servers stream none.
			if o.SendInitialEvents == nil || err == nil || utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) {
				s.noteAnswer(ctx, err)
			}
			if err != nil {
				return nil, err
			}
			return s.confirming(w, o.SendInitialEvents != nil), nil
		},
	}, clientset)
	return s
}

// Informer returns an informer of the source that has not run yet.
func (s *Source) Informer(example runtime.Object, indexers cache.Indexers) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(s.lw, example, 0, indexers)
}

// noteAnswer notes the answer to a list or watch.
func (s *Source) noteAnswer(ctx context.Context, err error) {
	// The URL of a list or watch is longer than what happened to it.
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, context.Canceled) && ctx.Err() != nil: // the informer stops
	case err != nil && s.err == nil:
		s.err, s.failed = err, time.Now()
	default:
		s.err = err
	}
}

// noteOpened notes that a watch is open. What happened since the last one has ended follows.
func (s *Source) noteOpened() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); !s.ended.IsZero() && now.Sub(s.ended) > reopenTime {
		s.failed, s.mended = s.ended, now
	}
	s.watched, s.ended = true, time.Time{}
}

// confirm notes that the API server has sent something. After a bookmark, nil: none, the cache has everything up to its version.
func (s *Source) confirm(bookmark runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirmed = time.Now()
	at, err := meta.Accessor(bookmark)
	if err != nil { // none
		return
	}
	s.mended = time.Time{}
	// The bookmark of a slow watch may be older than the change.
	if order, err := resourceversion.CompareResourceVersion(at.GetResourceVersion(), s.version); s.version != "" && (err != nil || order >= 0) {
		s.shows = nil
	}
}

// AnyVersion is that of a change that every bookmark confirms.
const AnyVersion = "0"

// NoteBehind notes that the cache lacks a change that the API server has made, as its answer to a write has shown: a watch that is slow still
// sends something. shows reports whether the cache has the change by now, or a newer one. It must not block. It may never, such as if another
// client has undone the change since, so a bookmark of the version of the change or a newer one ends it, too. Without a version none does.
func (s *Source) NoteBehind(version string, shows func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.shows, s.behind = version, shows, time.Now()
}

// Watched reports whether a watch was ever opened. A list alone keeps no cache up to date.
func (s *Source) Watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watched
}

// Err returns why the last list or watch failed, nil if it did not.
func (s *Source) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// stale returns since when the cache is not confirmed, and why, nil if it is fresh or not filled yet.
func (s *Source) stale(elapsed func(time.Time) time.Duration) (since time.Time, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.confirmed.IsZero(), s.optional && apierrors.IsNotFound(s.err): // it is not filled
	case s.err != nil:
		return s.failed, s.err
	case time.Since(s.mended) < catchUpTime:
		return s.failed, errors.New("it is watched again, and reads what it has missed")
	case !s.ended.IsZero() && elapsed(s.ended) > reopenTime:
		return s.ended, errors.New("its watch has ended, and no other has caught up")
	case elapsed(s.confirmed) > MaxSilence:
		return s.confirmed, errors.New("its watch is silent")
	case s.shows != nil && !s.shows():
		return s.behind, errors.New("its watch is slow: it does not show a change that the API server has made")
	}
	s.shows = nil // later changes come after it
	return time.Time{}, nil
}

// confirming returns a watch with the same events, each of which confirms the cache. An error is none. A watch that lists sends all objects
// first, which the reflector keeps apart from the cache until a bookmark ends them.
func (s *Source) confirming(from watch.Interface, lists bool) watch.Interface {
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	if !lists {
		s.noteOpened()
	}
	go func() {
		<-w.StopChan() // the reflector stops each watch, also one that has ended
		from.Stop()
	}()
	go func() {
		// The end is noted before the reflector finds the channel closed, and opens the next watch.
		defer close(events)
		defer s.noteEnded()
		for e := range from.ResultChan() {
			switch bookmark := e.Type == watch.Bookmark; {
			case e.Type == watch.Error, lists && !bookmark:
			case bookmark:
				if s.confirm(e.Object); lists {
					s.noteOpened()
					lists = false
				}
			default:
				s.confirm(nil)
			}
			// The reflector may have stopped reading.
			select {
			case events <- e:
			case <-w.StopChan():
				return
			}
		}
	}()
	return w
}

// noteEnded notes that no watch keeps the cache up to date from now on.
func (s *Source) noteEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.IsZero() {
		s.ended = time.Now()
	}
}

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
	// wallClock goes on while the machine sleeps, and may be set. With the monotonic clock it is the other way round.
	wallClock func() time.Time
	metric    *prometheus.GaugeVec

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
	return &Freshness{changed: changed, sources: sources, wallClock: time.Now, metric: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "lockstep", Name: "cache_stale",
		Help: "1 while a cache is not confirmed by the API server, so that no release is promoted by what it holds, else 0. By resource.",
	}, []string{"resource"})}
}

// elapsed returns how much time has passed by the clock that has moved further.
func (f *Freshness) elapsed(at time.Time) time.Duration {
	return max(time.Since(at), f.wallClock().Round(0).Sub(at))
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

// lastSuspension notes that the process runs, and whether it was suspended before: then its caches hold what they held, although their watches seem
// to be open.
func (f *Freshness) lastSuspension() (since, resumed time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if !f.running.IsZero() && f.elapsed(f.running) > suspended {
		f.asleep, f.resumed = f.running, now
	}
	f.running = now
	return f.asleep, f.resumed
}

// NoteBehind is [Source.NoteBehind] for the caches of a resource, such as "pods".
func (f *Freshness) NoteBehind(resource, version string, shows func() bool) {
	for _, s := range f.sources {
		if s.Resource.Resource == resource {
			s.NoteBehind(version, shows)
		}
	}
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
	asleep, resumed := f.lastSuspension()
	if len(sources) == 0 {
		sources = f.sources
	}
	for _, s := range sources {
		since, why := s.stale(f.elapsed)
		if time.Since(resumed) < catchUpTime {
			since, why = asleep, errors.New("the driver was suspended, and reads what it has missed")
		}
		if why != nil {
			stale = append(stale, Stale{s.Resource, since, why})
		}
	}
	return stale
}
