// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"net/http"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

// Options configure the load.
type Options struct {
	// URL is that of the gateway, with the path. Required.
	URL string
	// Host is the Host header of every request. The default is that of URL.
	Host string
	// GRPC sends calls of [podserver.Method] instead of HTTP requests. URL needs no path, and Match is metadata.
	GRPC bool
	// Stream sends streaming completions of this length to pods with containers (package modelserver). No other request is long.
	Stream time.Duration
	// Rate is the number of requests per second. 0 means as many as Concurrency allows.
	Rate float64
	// Concurrency is the maximum number of short requests in flight, which may lower the rate. The default is 64.
	Concurrency int
	// Requests and Duration end the load, whichever comes first. The defaults are 1,000,000 and 15 minutes.
	Requests int
	Duration time.Duration
	// Timeout bounds a request, beyond the duration of a long one. The default is 10 s.
	Timeout time.Duration
	// One of LongEvery requests takes LongFor. 0 means none. LongFor's default is 3 s.
	LongEvery int
	LongFor   time.Duration
	// One of MatchEvery requests has the headers Match, for a route with a header match; see [Phase.WantMatch].
	MatchEvery int
	Match      http.Header
	// Side returns the side of an answer. The default is its workload; in a release in place it should be the revision.
	Side func(podanswer.Answer) string
	// Ready returns the number of groups that could serve. It is asked as each request starts. Optional.
	Ready func() int
}

func (o Options) withDefaults() Options {
	o.Concurrency = cmp.Or(o.Concurrency, 64)
	o.Requests = cmp.Or(o.Requests, 1_000_000)
	o.Duration = cmp.Or(o.Duration, 15*time.Minute)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.LongFor = cmp.Or(o.LongFor, 3*time.Second)
	if o.Side == nil {
		o.Side = func(a podanswer.Answer) string { return a.Workload }
	}
	return o
}

// Shares are percentages by side. The sum is 100.
type Shares map[string]float64

// Phase is a part of the load with the same expectations.
type Phase struct {
	Name string
	// Want is the wanted share of each side, 0 for other sides. Nil means that shares are not checked.
	Want Shares
	// WantMatch is the wanted side of requests with the headers of Options.Match, which then do not count for the shares. "" means
	// that they are like other requests.
	WantMatch string
	// Tolerance is the maximum deviation of a share, in percentage points. The default is 2. Shares of 0 and 100 have none.
	Tolerance float64
	// MayFail means that the test causes failures, which are shown but are not problems.
	MayFail bool
	// MinReady is the least number of groups that are ready at any time, by Options.Ready.
	MinReady int
}

func (p Phase) tolerance() float64 { return cmp.Or(p.Tolerance, 2) }
