// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//nolint:forbidigo // The bubble\'s clock.
package informer

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// server answers lists and watches of ConfigMaps.
type server struct {
	mu      sync.Mutex
	refuses error
	watches []*watch.FakeWatcher
	// answers is closed once watches are answered, nil if they are.
	answers chan struct{}
	// ahead is by how much the wall clock of the process was set ahead, in nanoseconds.
	ahead atomic.Int64
	// forgets has it forget what happened since the version from which a watch continues.
	forgets bool
}

func (s *server) List(context.Context, metav1.ListOptions) (*corev1.ConfigMapList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, s.refuses
}

func (s *server) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if s.answers != nil {
		<-s.answers
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses != nil {
		return nil, s.refuses
	}
	if s.forgets && o.SendInitialEvents == nil {
		return nil, apierrors.NewResourceExpired("too old")
	}
	s.watches = append(s.watches, watch.NewFake())
	return s.watches[len(s.watches)-1], nil
}

// refuse has the server refuse what is asked from now on, and end the watch that is open.
func (s *server) refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = err
	if err != nil {
		s.watches[len(s.watches)-1].Stop()
	}
}

func (s *server) bookmark() { s.bookmarkAt("2") }

func (s *server) bookmarkAt(version string) {
	s.mu.Lock()
	w := s.watches[len(s.watches)-1]
	s.mu.Unlock()
	w.Action(watch.Bookmark, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}})
}

// watched runs an informer of ConfigMaps, and a Freshness whose calls of changed it counts.
func watched(t *testing.T, test func(s *server, f *Freshness, changed *atomic.Int32)) {
	watchedBy(t, fakeClient{}, test)
}

func watchedBy(t *testing.T, client any, test func(s *server, f *Freshness, changed *atomic.Int32)) {
	synctest.Test(t, func(t *testing.T) {
		s, changed := &server{}, &atomic.Int32{}
		source := NewSource(configMaps, client, s, "")
		informer := source.Informer(&corev1.ConfigMap{}, nil)
		// The default one waits until the time of the machine.
		require.NoError(t, informer.SetWatchErrorHandler(func(*cache.Reflector, error) {}))
		f := NewFreshness(func() { changed.Add(1) }, source)
		f.wallClock = func() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }
		if stale := f.Of(); stale != nil || source.Watched() {
			t.Errorf("before it is filled: %v, watched %t", stale, source.Watched())
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { informer.RunWithContext(ctx) })
		running.Go(func() { f.Run(ctx) })
		synctest.Wait()
		// A streamed list has not ended.
		if stale := f.Of(); stale != nil || source.Watched() != (client == fakeClient{}) {
			t.Errorf("filled: %v, watched %t", stale, source.Watched())
		}
		test(s, f, changed)
		cancel()
		running.Wait()
	})
}

// fakeClient can't stream lists.
type fakeClient struct{}

func (fakeClient) IsWatchListSemanticsUnSupported() bool { return true }

// why returns why the cache is stale, and for how long it has been, or "" if it is fresh.
func why(f *Freshness) (string, time.Duration) {
	for _, s := range f.Of() {
		return s.Why.Error(), time.Since(s.Since)
	}
	return "", 0
}

// mustCatchUp fails unless the cache reads what it has missed since at least a time ago, and is fresh after that.
func mustCatchUp(t *testing.T, f *Freshness, what string, least time.Duration) {
	t.Helper()
	got, since := why(f)
	assert.True(t, strings.Contains(got, "reads what it has missed") && since >= least, "%s: %q since %s", what, got, since)
	time.Sleep(catchUpTime)
	got, _ = why(f)
	assert.Empty(t, got, "read: %q", got)
}

// A silent watch is fresh within the bound, and its bookmarks confirm it.
func TestSilentWatch(t *testing.T) {
	watched(t, func(s *server, f *Freshness, changed *atomic.Int32) {
		for range 3 {
			time.Sleep(MaxSilence - time.Second)
			if got, _ := why(f); got != "" || changed.Load() > 0 {
				t.Errorf("within the bound: %s, %d changes", got, changed.Load())
			}
			s.bookmark()
			synctest.Wait()
		}
		time.Sleep(MaxSilence + 2*time.Second)
		synctest.Wait()
		if got, since := why(f); got != "its watch is silent" || since < MaxSilence || changed.Load() != 1 {
			t.Errorf("beyond the bound: %q since %s, %d changes", got, since, changed.Load())
		}
		s.bookmark()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got, _ := why(f); got != "" || changed.Load() != 2 {
			t.Errorf("after a bookmark: %q, %d changes", got, changed.Load())
		}
	})
}

// The reflector retries after status 429 without an error. The cache is stale at once, and until it has read what it missed.
func TestRefusedWatch(t *testing.T) {
	watched(t, func(s *server, f *Freshness, changed *atomic.Int32) {
		time.Sleep(time.Minute)
		s.bookmark()
		s.refuse(apierrors.NewTooManyRequests("later", 1))
		synctest.Wait()
		got, _ := why(f)
		assert.Contains(t, got, "later", "refused: %q", got)
		time.Sleep(time.Minute)
		s.refuse(nil)
		for got := "later"; strings.Contains(got, "later"); got, _ = why(f) {
			time.Sleep(100 * time.Millisecond)
		}
		mustCatchUp(t, f, "answered again", time.Minute)
		if time.Sleep(2 * time.Second); changed.Load() != 2 {
			t.Errorf("%d changes, want 2", changed.Load())
		}
	})
}

// streaming is a client whose lists are streamed.
type streaming struct{}

// A watch that sends all objects again confirms nothing before its end: the reflector keeps the objects apart from the cache until then.
func TestStreamedListConfirmsAtItsEnd(t *testing.T) {
	watchedBy(t, streaming{}, func(s *server, f *Freshness, _ *atomic.Int32) {
		// Longer than any delay of the reflector.
		const retried = time.Minute
		send := func(kind watch.EventType, name string, annotations map[string]string) {
			s.mu.Lock()
			w := s.watches[len(s.watches)-1]
			s.mu.Unlock()
			w.Action(kind, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "2", Annotations: annotations}})
			synctest.Wait()
		}
		end := func() { send(watch.Bookmark, "", map[string]string{metav1.InitialEventsAnnotationKey: "true"}) }
		end()
		got, _ := why(f)
		assert.Empty(t, got, "filled: %q", got)
		s.forgets = true
		s.refuse(apierrors.NewTooManyRequests("later", 1))
		time.Sleep(time.Hour)
		s.refuse(nil)
		time.Sleep(retried)
		for range 3 {
			send(watch.Added, "old", nil)
			got, since := why(f)
			assert.True(t, got != "" && since >= time.Hour, "all objects are being sent: %q since %s", got, since)
			// The next stream begins anew.
			s.watches[len(s.watches)-1].Stop()
			synctest.Wait()
			got, _ = why(f)
			assert.NotEmpty(t, got, "the stream has broken off, and the cache counts as fresh")
			time.Sleep(retried)
		}
		end()
		mustCatchUp(t, f, "all objects were sent", time.Hour)
	})
}

// A watch that takes long to open has missed as much as one that was refused.
func TestSlowWatch(t *testing.T) {
	watched(t, func(s *server, f *Freshness, _ *atomic.Int32) {
		s.answers = make(chan struct{})
		s.watches[len(s.watches)-1].Stop()
		time.Sleep(time.Minute)
		close(s.answers)
		synctest.Wait()
		mustCatchUp(t, f, "answered", time.Minute)
	})
}

// A write that the API server has made shows that the cache is behind, although its slow watch continues to send.
func TestBehindAWrite(t *testing.T) {
	for what, tt := range map[string]struct {
		version string // of the write
		shown   func(s *server, shows *atomic.Bool)
		still   bool
	}{
		"the cache shows the write":            {"20", func(_ *server, shows *atomic.Bool) { shows.Store(true) }, false},
		"a bookmark of the write":              {"20", func(s *server, _ *atomic.Bool) { s.bookmarkAt("20") }, false},
		"a newer bookmark":                     {"20", func(s *server, _ *atomic.Bool) { s.bookmarkAt("100") }, false},
		"an older bookmark":                    {"20", func(s *server, _ *atomic.Bool) { s.bookmarkAt("19") }, true},
		"a bookmark, deleted":                  {"", func(s *server, _ *atomic.Bool) { s.bookmarkAt("100") }, true},
		"a bookmark, the version is not known": {AnyVersion, func(s *server, _ *atomic.Bool) { s.bookmarkAt("19") }, false},
	} {
		watched(t, func(s *server, f *Freshness, _ *atomic.Int32) {
			var shows atomic.Bool
			f.NoteBehind("secrets", tt.version, shows.Load)
			if why, _ := why(f); why != "" {
				t.Errorf("behind a write of another resource: %s", why)
			}
			f.NoteBehind("configmaps", tt.version, shows.Load)
			time.Sleep(20 * time.Second)
			s.watches[0].Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "older"}})
			synctest.Wait()
			if why, since := why(f); !strings.Contains(why, "slow") || since != 20*time.Second {
				t.Errorf("behind a write for %s: %q", since, why)
			}
			tt.shown(s, &shows)
			synctest.Wait()
			if why, _ := why(f); (why != "") != tt.still {
				t.Errorf("%s: %q", what, why)
			}
			shows.Store(true)
			if why, _ := why(f); why != "" {
				t.Errorf("%s, and the cache shows the write: %s", what, why)
			}
			shows.Store(false)
			again, _ := why(f)
			assert.Empty(t, again, "%s, and the change is undone: %s", what, again)
		})
	}
}

// A watch that ends and is opened again, as every few minutes, makes nothing stale.
func TestWatchEnds(t *testing.T) {
	watched(t, func(s *server, f *Freshness, changed *atomic.Int32) {
		for range 3 {
			time.Sleep(time.Minute)
			s.bookmark()
			s.watches[len(s.watches)-1].Stop()
			synctest.Wait()
			got, _ := why(f)
			assert.Empty(t, got, "the watch ended: %q", got)
		}
		if len(s.watches) < 4 || changed.Load() > 0 {
			t.Errorf("%d watches, %d changes", len(s.watches), changed.Load())
		}
	})
}

// A process that was suspended holds what it held, although its watches are open.
func TestSuspended(t *testing.T) {
	watched(t, func(s *server, f *Freshness, _ *atomic.Int32) {
		s.ahead.Store(int64(time.Hour))
		got, _ := why(f)
		assert.Contains(t, got, "suspended", "resumed: %q", got)
		s.ahead.Store(0) // the clock was set, and is set back
		time.Sleep(catchUpTime)
		got, _ = why(f)
		assert.Empty(t, got, "read: %q", got)
	})
}

// A watch that falls silent while the clock is set back is silent no later.
func TestSilentWatchOfClockSetBack(t *testing.T) {
	watched(t, func(s *server, f *Freshness, _ *atomic.Int32) {
		s.ahead.Store(-int64(time.Hour))
		time.Sleep(MaxSilence + time.Second)
		got, _ := why(f)
		assert.Equal(t, "its watch is silent", got)
	})
}
