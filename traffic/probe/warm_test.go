// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
)

var health = WarmUp{Endpoint: Endpoint{8000, "/health"}, Timeout: 10 * time.Second}

// TestWarm: the request to a leader, and that it is made once.
func TestWarm(t *testing.T) {
	type asked struct{ Method, Host, URI, Type, Body string }
	for _, tt := range []struct {
		name   string
		addr   string
		policy WarmUp
		want   asked
	}{
		{"get", "10.0.0.1", health, asked{"GET", "10.0.0.1:8000", "/health", "", ""}},
		{"post", "10.0.0.1", WarmUp{Endpoint: Endpoint{8000, "/v1/completions?a=b%20c"}, Body: `{"prompt":"x"}`},
			asked{"POST", "10.0.0.1:8000", "/v1/completions?a=b%20c", "application/json", `{"prompt":"x"}`}},
		{"IPv6", "fd00::1", WarmUp{Endpoint: Endpoint{80, "/"}}, asked{"GET", "[fd00::1]:80", "/", "", ""}},
		{"IPv4 in IPv6", "::ffff:10.0.0.1", health, asked{"GET", "10.0.0.1:8000", "/health", "", ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *fixture) {
				requests := make(chan asked, 10)
				b.net.serve(tt.want.Host, func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					requests <- asked{r.Method, r.Host, r.RequestURI, r.Header.Get("Content-Type"), string(body)}
					w.WriteHeader(http.StatusNoContent)
				})
				l := Leader{Name: "vllm-0", UID: "uid", Address: tt.addr}
				got := b.Warm("o", l, tt.policy)
				assert.Equal(t, Pending, got.State, "first call: %+v", got)
				synctest.Wait()
				for range 3 {
					got := b.Warm("o", l, tt.policy)
					assert.True(t, got.State == Done && strings.Contains(got.Message, "vllm-0"), "%+v, want done", got)
					after(time.Hour)
				}
				assert.Empty(t, cmp.Diff(tt.want, <-requests), "asked (-want +got)")
				assert.True(t, len(requests) == 0 && b.changes.Load() == 1, "%d more requests, %d changes", len(requests), b.changes.Load())
			})
		})
	}
}

// TestWarmFails: every response but 2xx fails with a message, until a later one succeeds.
func TestWarmFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		fails  error
		wait   time.Duration
		want   string
	}{
		{"unavailable", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, nil, 0, "answered 503 Service Unavailable"},
		{"unknown status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(599) }, nil, 0, "answered 599 (try 1)"},
		{"not found", http.NotFound, nil, 0, "answered 404 Not Found: correct the path"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/else", http.StatusFound) }, nil, 0, "redirects are not followed"},
		{"late", slow(time.Minute), nil, 10 * time.Second, "no response within 10s"},
		{"late body", func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, nil, 10 * time.Second, "began but did not end within 10s"},
		{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, nil, 0, "EOF"},
		{"refused", nil, nil, 0, "refused the connection: nothing listens on port 8000"},
		{"no route", nil, syscall.EHOSTUNREACH, 0, "no route to the pod"},
		{"no network", nil, syscall.ENETUNREACH, 0, "check where the driver runs"},
		{"other", nil, errors.New("x" + strings.Repeat("y", 1000)), 0, "yy ..."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *fixture) {
				b.net.serve(at(1), tt.answer)
				b.net.fails[at(1)] = tt.fails
				policy := health
				policy.Endpoint.Path += "?token=secret"
				b.Warm("o", leader(1), policy)
				after(tt.wait)
				got := b.Warm("o", leader(1), policy)
				next := time.Now().Add(time.Second).UTC().Format(time.RFC3339)
				for _, want := range []string{tt.want, "vllm-1 (10.0.0.1)", "GET :8000/health:", "next try at " + next} {
					assert.True(t, got.State == Failed && strings.Contains(got.Message, want), "%v %q, want %q in it", got.State, got.Message, want)
				}
				assert.True(t, !strings.Contains(got.Message, "secret") && len(got.Message) <= 400, "message %q", got.Message)
				good, _ := counted(200)
				b.net.serve(at(1), good)
				b.net.mu.Lock()
				delete(b.net.fails, at(1))
				b.net.mu.Unlock()
				after(time.Second)
				if got := b.Warm("o", leader(1), policy); got.State != Done || b.changes.Load() != 2 {
					t.Errorf("%+v after %d changes, want done after 2", got, b.changes.Load())
				}
			})
		})
	}
}

// TestWarmBackoff: a failed request is retried with backoff, until the warm-up is ended.
func TestWarmBackoff(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		start := time.Now()
		var tries times
		b.net.serve(at(1), func(w http.ResponseWriter, _ *http.Request) {
			tries.add(time.Since(start) / time.Second)
			w.WriteHeader(http.StatusInternalServerError)
		})
		b.Warm("o", leader(1), health)
		after(100 * time.Second)
		assert.Empty(t, cmp.Diff([]time.Duration{0, 1, 3, 7, 15, 31, 61, 91}, tries.all()), "tries at seconds (-want +got)")
		b.Keep("o", nil, false)
		before := len(tries.all())
		after(time.Hour)
		if more := len(tries.all()) - before; more > 0 || len(b.owners) != 0 {
			t.Errorf("%d tries after the end; %d owners remembered", more, len(b.owners))
		}
		got := b.Warm("o", leader(1), health)
		assert.Equal(t, Pending, got.State, "%+v, want a new beginning", got)
		synctest.Wait()
		assert.Len(t, tries.all(), before+1, "a new poll makes no request at once")
	})
}

// TestWarmMemory: success is remembered for the pod and the policy, until the owner drops it.
func TestWarmMemory(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		answer, n := counted(200)
		b.net.serve(at(1), answer)
		b.net.serve(at(2), answer)
		warm := func(owner string, l Leader, p WarmUp, want State, requests int64) {
			t.Helper()
			before := n.Load()
			got := b.Warm(owner, l, p)
			assert.Equal(t, want, got.State, "%+v, want %v", got, want)
			synctest.Wait()
			assert.Equal(t, requests, n.Load()-before, "requests")
		}
		again := leader(1)
		again.UID = "uid-again"
		other := health
		other.Body = "{}"
		nowhere := leader(1)
		nowhere.Address = ""

		warm("o", leader(1), health, Pending, 1)
		warm("o", leader(2), health, Pending, 1)
		warm("o", leader(1), health, Done, 0)
		warm("o", nowhere, health, Done, 0)
		warm("other", leader(1), health, Pending, 1)
		warm("o", again, health, Pending, 1)
		b.Keep("o", []string{"uid-1", "uid-9"}, false)
		b.Keep("unknown", nil, false)
		warm("o", leader(1), health, Done, 0)
		warm("o", leader(2), health, Pending, 1)
		warm("o", leader(1), other, Pending, 1)
		warm("o", leader(1), other, Done, 0)
		b.Forget("o")
		b.Forget("unknown")
		warm("o", leader(1), other, Pending, 1)
		warm("other", leader(1), health, Done, 0)
		b.Keep("o", nil, false)
		b.Forget("other")
		assert.Empty(t, b.owners, "owners remembered")
	})
}

// TestWarmWithoutRequest: progress that needs no request.
func TestWarmWithoutRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		got := b.Warm("o", leader(1), WarmUp{})
		assert.Equal(t, Done, got.State, "%+v without a policy", got)
		got = b.Warm("o", Leader{Name: "vllm-0", UID: "u"}, health)
		assert.True(t, got.State == Pending && got.Recheck == 0, "%+v without an address", got)
		assert.Empty(t, b.owners, "an owner is remembered")
		name := Leader{Name: "vllm-0", UID: "u", Address: "metadata.internal"}
		b.Warm("o", name, health)
		synctest.Wait()
		got = b.Warm("o", name, health)
		assert.True(t, got.State == Failed && strings.Contains(got.Message, "not an IP address"), "%+v with a name", got)
	})
}

// TestWarmConcurrency: concurrent requests are bounded per owner, and owners don't delay each other.
func TestWarmConcurrency(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		var now crowd
		for i := range 50 {
			b.net.serve(at(i), func(w http.ResponseWriter, r *http.Request) {
				defer now.leave()
				now.enter()
				slow(5*time.Second)(w, r)
			})
		}
		quick, _ := counted(200)
		b.net.serve(at(99), quick)
		for i := range 50 {
			b.Warm("o", leader(i), health)
		}
		synctest.Wait()
		assert.Equal(t, perOwner, now.size(), "requests at a time")
		b.Warm("other", leader(99), health)
		synctest.Wait()
		got := b.Warm("other", leader(99), health)
		assert.Equal(t, Done, got.State, "%+v: held up by another owner", got)
		after(time.Minute)
		for i := range 50 {
			got := b.Warm("o", leader(i), health)
			assert.Equal(t, Done, got.State, got)
		}
		if now.peak() > perOwner || now.size() > 0 {
			t.Errorf("%d requests at a time, %d left", now.peak(), now.size())
		}
	})
}

// TestWarmConcurrencyOfAllOwners: concurrent requests are bounded per process, and all leaders have their turn.
func TestWarmConcurrencyOfAllOwners(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		// A server notices after its client that a request was canceled, so those of o0 are counted apart.
		var now, forgotten crowd
		const owners = 2 * perProcess / perOwner
		each := func(f func(owner string, l Leader)) {
			for i := range owners * perOwner {
				f(fmt.Sprint("o", i%owners), leader(i))
			}
		}
		for i := range owners * perOwner {
			among := &now
			if i%owners == 0 {
				among = &forgotten
			}
			b.net.serve(at(i), func(w http.ResponseWriter, r *http.Request) {
				defer among.leave()
				among.enter()
				slow(5*time.Second)(w, r)
			})
		}
		each(func(owner string, l Leader) { b.Warm(owner, l, health) })
		synctest.Wait()
		// A few slots are left to other namespaces.
		all := now.size() + forgotten.size()
		assert.True(t, all <= perProcess && all >= perProcess*3/4, "%d requests at a time, want almost %d", all, perProcess)
		b.Forget("o0")
		after(time.Minute)
		each(func(owner string, l Leader) {
			got := b.Warm(owner, l, health)
			assert.False(t, owner != "o0" && got.State != Done, got)
		})
		assert.LessOrEqual(t, now.peak(), perProcess, "requests at a time")
	})
}

// TestWarmOfOtherNamespace: leaders that take an hour hold up none of another namespace, in however many namespaces they are.
func TestWarmOfOtherNamespace(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		const owners = 12
		loud := 0
		for namespace, leaders := range []int{70, 40, 20, 10, 10, 10, 10, 10, 10, 10} { // each takes half of what is free
			for range leaders {
				b.net.serve(at(loud), slow(time.Hour))
				b.Warm(fmt.Sprintf("loud-%d/%d", namespace, loud%owners), leader(loud), WarmUp{Endpoint: health.Endpoint, Timeout: MaxWarmUpTimeout})
				loud++
			}
			synctest.Wait()
		}
		quick, _ := counted(200)
		b.net.serve(at(loud), quick)
		synctest.Wait()
		b.Warm("quiet/o", leader(loud), health)
		synctest.Wait()
		got := b.Warm("quiet/o", leader(loud), health)
		assert.Equal(t, Done, got.State, got)
	})
}

// TestWarmEndless: an endless response succeeds once the limit was read.
func TestWarmEndless(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		b.net.serve(at(1), func(w http.ResponseWriter, _ *http.Request) {
			for err := error(nil); err == nil; {
				_, err = w.Write(make([]byte, 4096))
			}
		})
		b.Warm("o", leader(1), health)
		synctest.Wait()
		got := b.Warm("o", leader(1), health)
		assert.Equal(t, Done, got.State, got)
	})
}

// TestWarmStops: Forget and Close cancel requests in flight, whose results are ignored.
func TestWarmStops(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		var hungUp atomic.Int64
		for i := range 2 {
			b.net.serve(at(i), func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); hungUp.Add(1) })
		}
		b.Warm("o", leader(0), health)
		b.Warm("other", leader(1), health)
		synctest.Wait()
		b.Forget("o")
		synctest.Wait()
		assert.Equal(t, int64(1), hungUp.Load(), "requests ended")
		start := time.Now()
		b.Close()
		synctest.Wait()
		if hungUp.Load() != 2 || time.Since(start) > 0 || b.changes.Load() != 0 {
			t.Errorf("%d requests ended after %s, %d changes", hungUp.Load(), time.Since(start), b.changes.Load())
		}
		got := b.Warm("o", leader(0), health)
		assert.Equal(t, closing, got, "%+v after Close", got)
		b.Close()
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestCloseWaits: all work has ended when Close returns.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{Log: slog.New(slog.DiscardHandler), Changed: func(string) {}, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			<-time.After(time.Second) // to clean up
			return nil, r.Context().Err()
		})})
		p.Warm("o", leader(1), health)
		synctest.Wait()
		start := time.Now()
		p.Close()
		took := time.Since(start)
		assert.Equal(t, time.Second, took, "Close took %s, want 1s", took)
	})
}

// TestWarmLog: the log has each result once, and no secrets.
func TestWarmLog(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		var n atomic.Int64
		b.net.serve(at(1), func(w http.ResponseWriter, _ *http.Request) {
			if n.Add(1) < 4 {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, "secret")
			}
		})
		policy := WarmUp{Endpoint: Endpoint{8000, "/health?secret"}, Body: `{"secret":1}`}
		for range 4 {
			b.Warm("o", leader(1), policy)
			after(10 * time.Second)
		}
		b.Close()
		log := b.log.String()
		assert.NotContains(t, log, "secret", "a secret in the log")
		for level, want := range map[string]int{"WARN": 1, "DEBUG": 2, "INFO": 1} {
			got := strings.Count(log, "level="+level)
			assert.Equal(t, want, got, "%d lines of level %s, want %d:\n%s", got, level, want, log)
		}
	})
}
