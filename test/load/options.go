// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"net/http"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/podserver"
)

// Options say what is sent.
type Options struct {
	// URL is the gateway's, with the path.
	URL string
	// Host is the Host header of every request. The default is that of URL.
	Host string
	// GRPC: calls of [podserver.Method] in place of HTTP requests. URL needs no path, and Match is metadata.
	GRPC bool
	// Rate is how many requests begin per second. 0 means as many as Concurrency allows.
	Rate float64
	// Concurrency is how many short requests may be on their way at once. When all are, the rate is not kept. The default is 64.
	Concurrency int
	// Requests and Duration end the load, whichever comes first. The defaults are 1,000,000 and 15 minutes.
	Requests int
	Duration time.Duration
	// Timeout is how long an answer may take, beyond the time that a long request asks for. The default is 10 s.
	Timeout time.Duration
	// One of LongEvery requests asks to be served for LongFor. 0 means none. LongFor's default is 3 s.
	LongEvery int
	LongFor   time.Duration
	// One of MatchEvery requests has the headers Match, for a route with a header match; see [Phase.WantMatch].
	MatchEvery int
	Match      http.Header
	// Side names the side that an answer came from. The default is its workload; in a release in place it is the revision.
	Side func(podserver.Answer) string
}

func (o Options) withDefaults() Options {
	o.Concurrency = cmp.Or(o.Concurrency, 64)
	o.Requests = cmp.Or(o.Requests, 1_000_000)
	o.Duration = cmp.Or(o.Duration, 15*time.Minute)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.LongFor = cmp.Or(o.LongFor, 3*time.Second)
	if o.Side == nil {
		o.Side = func(a podserver.Answer) string { return a.Workload }
	}
	return o
}

// Shares are percentages by side. They add up to 100.
type Shares map[string]float64

// Phase is a part of the load in which the same holds for all requests.
type Phase struct {
	Name string
	// Want is the share that each side should get. A side that is not named should get nothing. nil means that shares are not checked.
	Want Shares
	// WantMatch is the side to which all requests with the headers of Options.Match should go; they are then not counted in the shares.
	// "" means that they go where all others go.
	WantMatch string
	// Tolerance is how many points a share may differ. The default is 2. A share of 0 or 100 has none.
	Tolerance float64
	// MayFail: the test breaks something itself, so that failures are shown but are no problem.
	MayFail bool
}

func (p Phase) tolerance() float64 { return cmp.Or(p.Tolerance, 2) }
