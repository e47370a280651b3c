// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const metric = "vllm:num_requests_running"

var untilZero = Drain{Period: 10 * time.Second, Metric: metric, Endpoint: Endpoint{8000, "/metrics"}, Timeout: time.Minute}

// engine is a leader that reports its requests as vLLM does.
type engine struct {
	running atomic.Int64
	asked   atomic.Int64
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.asked.Add(1)
	if r.Header.Get("Accept") != metricsFormat || r.URL.Path != "/metrics" || !r.Close {
		w.WriteHeader(http.StatusBadRequest)
	}
	fmt.Fprintf(w, "# HELP %[1]s Number of requests.\n# TYPE %[1]s gauge\n"+
		"%[1]s{engine=\"0\",model_name=\"m\"} %[2]d.0\n%[1]s{engine=\"1\",model_name=\"m\"} 0.0\n", metric, e.running.Load())
}

// engines serves leaders 1 to n in the network.
func (b *fixture) engines(n int) (leaders []Leader, all []*engine) {
	for i := 1; i <= n; i++ {
		e := &engine{}
		b.net.serve(at(i), e.ServeHTTP)
		leaders, all = append(leaders, leader(i)), append(all, e)
	}
	return leaders, all
}

func expect(t *testing.T, got Progress, state State, words ...string) {
	t.Helper()
	assert.Equal(t, state, got.State, got)
	for _, word := range words {
		assert.Contains(t, got.Message, word, "%q, want %q in it", got.Message, word)
	}
}

// TestDrainPeriod: without a metric the period ends a drain; with one it is the minimum.
func TestDrainPeriod(t *testing.T) {
	for _, tt := range []struct {
		name    string
		policy  Drain
		leaders []Leader
		words   string
	}{
		{"period only", Drain{Period: 30 * time.Second}, []Leader{leader(1)}, "the drain period of 30s is over"},
		{"no leader", Drain{Period: 30 * time.Second, Metric: metric}, nil, "no leader is left"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *fixture) {
				since := time.Now().Add(-10 * time.Second)
				got := b.Drain("o", tt.leaders, tt.policy, since)
				expect(t, got, Pending, "until 2000-01-01T00:00:20Z", "drain period 30s")
				assert.Equal(t, 20*time.Second, got.Recheck, "recheck in %s, want 20s", got.Recheck)
				after(got.Recheck - 1)
				expect(t, b.Drain("o", tt.leaders, tt.policy, since), Pending)
				after(1)
				got = b.Drain("o", tt.leaders, tt.policy, since)
				expect(t, got, Done, tt.words)
				if got.Forced || got.Recheck != 0 || len(b.owners) != 0 {
					t.Errorf("%+v, %d owners", got, len(b.owners))
				}
			})
		})
	}
}

// TestDrainMetric: no request during the period; then one a second to each leader until all are at 0, and none after that.
func TestDrainMetric(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		leaders, engines := b.engines(3)
		engines[0].running.Store(3)
		engines[2].running.Store(1)
		since := time.Now()
		b.Drain("o", leaders, untilZero, since)
		after(untilZero.Period)
		assert.Zero(t, engines[0].asked.Load(), "request during the period")
		got := b.Drain("o", leaders, untilZero, since)
		expect(t, got, Pending, "no response yet from vllm-1, vllm-2, vllm-3")
		synctest.Wait()
		got = b.Drain("o", leaders, untilZero, since)
		expect(t, got, Pending, metric+" is 4: 3 on vllm-1, 1 on vllm-3;", "until 2000-01-01T00:01:10Z")
		if got.Recheck != untilZero.Timeout || b.changes.Load() != 3 {
			t.Errorf("%+v after %d changes", got, b.changes.Load())
		}
		engines[0].running.Store(0)
		after(time.Second)
		expect(t, b.Drain("o", leaders, untilZero, since), Pending, "1 on vllm-3")
		engines[0].running.Store(2) // a request that was in flight
		engines[2].running.Store(0)
		after(time.Second)
		expect(t, b.Drain("o", leaders, untilZero, since), Pending, "2 on vllm-1")
		engines[0].running.Store(0)
		after(time.Second)
		got = b.Drain("o", leaders, untilZero, since)
		expect(t, got, Done, "is 0 on 3 of 3 leaders")
		if got.Forced || got.Recheck != 0 || b.changes.Load() != 7 || engines[1].asked.Load() != 4 {
			t.Errorf("%+v after %d changes and %d requests", got, b.changes.Load(), engines[1].asked.Load())
		}
		engines[1].running.Store(9)
		after(time.Hour)
		expect(t, b.Drain("o", leaders[1:], untilZero, since), Done, "is 0")
		assert.Equal(t, int64(4), engines[1].asked.Load(), "request after the drain")
	})
}

// TestDrainForced: the timeout ends a drain, and the message lists the remaining requests.
func TestDrainForced(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		leaders, engines := b.engines(9)
		for _, e := range engines[:7] {
			e.running.Store(2)
		}
		b.net.serve(at(8), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
		b.net.serve(at(9), nil)
		since := time.Now()
		for {
			got := b.Drain("o", leaders, untilZero, since)
			if got.State == Done {
				expect(t, got, Done, "stopped waiting at the drain timeout of 1m0s", "is 14: 2 on vllm-1", "2 on vllm-5 and 2 more",
					"can't be read on vllm-8 (GET :8000/metrics: answered 503 Service Unavailable)",
					"counted as drained because they accept no connections: vllm-9 (GET")
				assert.True(t, got.Forced, "not forced")
				break
			}
			require.True(t, got.Recheck > 0, got)
			after(got.Recheck)
		}
		assert.Equal(t, untilZero.Period+untilZero.Timeout, time.Since(since), "took")
		expect(t, b.Drain("o", leaders[:2], untilZero, since), Done, "is 14")
		b.Close()
		assert.Contains(t, b.log.String(), "level=WARN msg=drained owner=o forced=true", "the log has no such line")
	})
}

// TestDrainDefaultTimeout: a Drain without timeout has the default of ParseDrain.
func TestDrainDefaultTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		leaders, engines := b.engines(1)
		engines[0].running.Store(1)
		policy := untilZero
		policy.Timeout = 0
		since := time.Now().Add(-policy.Period)
		b.Drain("o", leaders, policy, since)
		after(DefaultDrainTimeout - time.Second)
		expect(t, b.Drain("o", leaders, policy, since), Pending)
		after(time.Second)
		expect(t, b.Drain("o", leaders, policy, since), Done, "1 on vllm-1")
	})
}

// TestDrainLeader: the responses which mean that a leader has no requests.
func TestDrainLeader(t *testing.T) {
	page := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		fails  error
		want   State
		words  string
	}{
		{"zero", page(metric + " 0\n"), nil, Done, "is 0 on 2 of 2"},
		{"refused", nil, nil, Done, "is 0 on 1 of 2 leaders; counted as drained because they accept no connections: vllm-2 (GET :8000/metrics: refused"},
		{"no route", nil, syscall.EHOSTUNREACH, Done, "vllm-2 (GET :8000/metrics: no route to the pod"},
		{"no network", nil, syscall.ENETUNREACH, Failed, "check where the driver runs"},
		{"reset", nil, syscall.ECONNRESET, Failed, "connection reset"},
		{"late", slow(time.Minute), nil, Failed, "no response within 2s"},
		{"error", page(""), nil, Failed, "the page has no metric vllm:num_requests_running"},
		{"not found", http.NotFound, nil, Failed, "answered 404 Not Found"},
		{"invalid value", page(metric + " many\n"), nil, Failed, "can't be read"},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, metric+" 0\n")
		}, nil, Failed, "unexpected EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *fixture) {
				leaders, _ := b.engines(2)
				b.net.serve(at(2), tt.answer)
				b.net.fails[at(2)] = tt.fails
				since := time.Now().Add(-untilZero.Period)
				b.Drain("o", leaders, untilZero, since)
				after(pollTimeout)
				expect(t, b.Drain("o", leaders, untilZero, since), tt.want, tt.words)
			})
		})
	}
	t.Run("refused by a ready pod", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *fixture) {
			leaders, _ := b.engines(2)
			b.net.serve(at(2), nil)
			leaders[1].Ready = true // it serves on another port
			since := time.Now().Add(-untilZero.Period)
			b.Drain("o", leaders, untilZero, since)
			after(pollTimeout)
			expect(t, b.Drain("o", leaders, untilZero, since), Failed, "can't be read on vllm-2 (GET :8000/metrics: refused")
			leaders[1].Ready = false
			expect(t, b.Drain("o", leaders, untilZero, since), Done, "is 0 on 1 of 2")
		})
	})
	t.Run("no address", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *fixture) {
			pending := []Leader{{Name: "vllm-0", UID: "u"}}
			since := time.Now().Add(-untilZero.Period)
			b.Drain("o", pending, untilZero, since)
			synctest.Wait()
			expect(t, b.Drain("o", pending, untilZero, since), Done, "has no address")
		})
	})
}

// TestDrainAfterRestart: a driver that starts after the timeout reads each leader once before the drain ends.
func TestDrainAfterRestart(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc // of one leader
		forced bool
		within time.Duration
	}{
		{"drained meanwhile", nil, false, 0},
		{"still running", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, metric, 1) }, true, 0},
		{"silent", slow(time.Hour), true, pollTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *fixture) {
				leaders, _ := b.engines(2)
				if tt.answer != nil {
					b.net.serve(at(1), tt.answer)
				}
				since := time.Now().Add(-time.Hour)
				got := b.Drain("o", leaders, untilZero, since)
				expect(t, got, Pending, "no response yet")
				assert.True(t, got.Recheck > 0, got)
				after(tt.within)
				got = b.Drain("o", leaders, untilZero, since)
				assert.True(t, got.State == Done && got.Forced == tt.forced, "%+v, want done, forced %t", got, tt.forced)
			})
		})
	}
}

// TestDrainFirstReadIsBounded: leaders without a first reading do not delay the end for long.
func TestDrainFirstReadIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		var leaders []Leader
		for i := range 100 {
			b.net.serve(at(i), slow(time.Hour))
			leaders = append(leaders, leader(i))
		}
		since := time.Now().Add(-time.Hour)
		b.Drain("o", leaders, untilZero, since)
		after(firstReadTimeout)
		got := b.Drain("o", leaders, untilZero, since)
		expect(t, got, Done, "no response yet from")
		assert.True(t, got.Forced, "not forced")
	})
}

// TestDrainChanges: leaders are added and removed during a drain, and another drain replaces it.
func TestDrainChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		leaders, engines := b.engines(3)
		engines[0].running.Store(1)
		engines[2].running.Store(5)
		since := time.Now().Add(-untilZero.Period)
		b.Drain("o", leaders[:2], untilZero, since)
		synctest.Wait()
		b.Keep("o", nil, true)
		expect(t, b.Drain("o", leaders[:2], untilZero, since), Pending, "1 on vllm-1")
		expect(t, b.Drain("o", leaders[1:2], untilZero, since), Done)
		expect(t, b.Drain("o", leaders[1:], untilZero, since), Pending, "no response yet")
		synctest.Wait()
		expect(t, b.Drain("o", leaders[1:], untilZero, since), Pending, "5 on vllm-3")
		asked := engines[0].asked.Load()
		after(5 * time.Second)
		assert.Equal(t, asked, engines[0].asked.Load(), "request to a leader that was removed from the drain")
		expect(t, b.Drain("o", leaders[1:2], untilZero, since), Done)
		expect(t, b.Drain("o", leaders[1:2], untilZero, since.Add(-1)), Pending, "no response yet")
		expect(t, b.Drain("other", leaders[:1], untilZero, since), Pending, "no response yet")
		synctest.Wait()
		expect(t, b.Drain("other", leaders[:1], untilZero, since), Pending, "1 on vllm-1")
		b.Keep("other", nil, false)
		asked = engines[0].asked.Load()
		after(5 * time.Second)
		assert.Equal(t, asked, engines[0].asked.Load(), "request after the end of the drain")
		expect(t, b.Drain("other", leaders[:1], untilZero, since), Pending, "no response yet") // a reading from before would be outdated
	})
}

// TestDrainStops: Forget and Close stop the watching, with requests in flight.
func TestDrainStops(t *testing.T) {
	inBubble(t, func(t *testing.T, b *fixture) {
		var asked, hungUp atomic.Int64
		for i := range 40 {
			b.net.serve(at(i), func(_ http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				<-r.Context().Done()
				hungUp.Add(1)
			})
		}
		var leaders []Leader
		for i := range 40 {
			leaders = append(leaders, leader(i))
		}
		since := time.Now().Add(-untilZero.Period)
		b.Drain("o", leaders, untilZero, since)
		b.Drain("other", leaders[:1], untilZero, since)
		synctest.Wait()
		assert.Equal(t, int64(perOwner+1), asked.Load(), "requests at a time")
		b.Forget("o")
		synctest.Wait()
		assert.Equal(t, int64(perOwner), hungUp.Load(), "requests ended")
		b.Close()
		synctest.Wait()
		if hungUp.Load() != perOwner+1 || asked.Load() != perOwner+1 || b.changes.Load() != 0 {
			t.Errorf("%d of %d requests ended, %d changes", hungUp.Load(), asked.Load(), b.changes.Load())
		}
		got := b.Drain("o", leaders, untilZero, since)
		assert.Equal(t, closing, got, "%+v after Close", got)
	})
}
