// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

// Generator sends the load. [Start] starts it.
type Generator struct {
	options Options
	client  *http.Client
	conn    *grpc.ClientConn // for gRPC, in place of client
	begin   time.Time
	cancel  context.CancelFunc
	done    chan struct{} // closed when no request is in flight any more

	mu     sync.Mutex
	phases []*phase
	took   time.Duration
}

// phase is a started phase. The generator's mutex guards it.
type phase struct {
	Phase
	begin   time.Duration
	records []record
}

// record is the result of a request. Times are since the generator's start.
type record struct {
	begin       time.Duration
	side        string // "" if no pod answered, or if the next phase started meanwhile
	match       bool
	failure     failure // zero if it was served
	terminating bool
	ready       int // groups, as it started
}

// Start starts the load with a phase named "start", in which no request may fail. The load ends with ctx, with [Generator.End], or
// at the limits of [Options].
func Start(ctx context.Context, options Options) *Generator {
	options = options.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, options.Duration)
	g := &Generator{
		options: options,
		client: &http.Client{
			Transport: &http.Transport{
				MaxIdleConnsPerHost: 2 * options.Concurrency, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		begin:  time.Now(),
		cancel: cancel,
		done:   make(chan struct{}),
		phases: []*phase{{Phase: Phase{Name: "start"}}},
	}
	if options.GRPC {
		g.conn = connect(options)
	}
	go g.run(ctx)
	return g
}

// run starts requests at their time, and returns when all have completed.
func (g *Generator) run(ctx context.Context) {
	defer close(g.done)
	var inFlight sync.WaitGroup
	slots := make(chan struct{}, g.options.Concurrency)
	dice := rand.New(rand.NewPCG(1, 2))
	for i := range g.options.Requests {
		if !g.await(ctx, i) {
			break
		}
		r := g.options.request(dice)
		r.duration = max(r.duration, g.options.Stream)
		if r.duration > 0 {
			// A long request does not delay short ones.
			inFlight.Go(func() { g.send(ctx, r) })
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		inFlight.Go(func() {
			g.send(ctx, r)
			<-slots
		})
	}
	inFlight.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.took = time.Since(g.begin)
	g.client.CloseIdleConnections()
	if g.conn != nil {
		_ = g.conn.Close()
	}
}

// await waits for the time of the i-th request. It reports false if ctx ends before.
func (g *Generator) await(ctx context.Context, i int) bool {
	if g.options.Rate > 0 {
		at := time.Duration(float64(i) / g.options.Rate * float64(time.Second))
		if early := at - time.Since(g.begin); early > 0 {
			select {
			case <-time.After(early):
			case <-ctx.Done():
			}
		}
	}
	return ctx.Err() == nil
}

// Begin starts the next phase. Call it just before the action whose effect is measured. Requests in flight must not fail, but do not
// count in the shares of either phase.
func (g *Generator) Begin(next Phase) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.phases = append(g.phases, &phase{Phase: next, begin: time.Since(g.begin)})
}

// current returns the current phase and time.
func (g *Generator) current() (*phase, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.phases[len(g.phases)-1], time.Since(g.begin)
}

func (g *Generator) add(p *phase, r record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p != g.phases[len(g.phases)-1] {
		r.side = ""
	}
	p.records = append(p.records, r)
}

// ErrEnded is returned by [Generator.Await] if the load ends too early.
var ErrEnded = errors.New("the load has ended")

// Await waits until the current phase has its wanted share and n requests more have completed, or without a wanted share n requests.
// It returns an error if ctx or the load ends before.
func (g *Generator) Await(ctx context.Context, n int) error {
	for err := error(nil); ; {
		row := g.evaluate()
		if row.True && row.Checked >= n {
			return nil
		}
		if err != nil {
			return fmt.Errorf("phase %q: %s: %w", row.Name, row.progress(n), err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-g.done:
			err = ErrEnded
		}
	}
}

// Share returns the shares of the last n requests of the current phase.
func (g *Generator) Share(n int) Shares {
	g.mu.Lock()
	defer g.mu.Unlock()
	records := g.phases[len(g.phases)-1].records
	return sharesOf(records[max(0, len(records)-n):])
}

// Totals returns the number of completed and of failed requests of all phases so far.
func (g *Generator) Totals() (requests, failed int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.phases {
		requests += len(p.records)
		for _, r := range p.records {
			if r.failure.kind != "" {
				failed++
			}
		}
	}
	return requests, failed
}

func (g *Generator) evaluate() Row {
	g.mu.Lock()
	p := g.phases[len(g.phases)-1]
	copied := phase{Phase: p.Phase, begin: p.begin, records: append([]record(nil), p.records...)}
	g.mu.Unlock()
	return copied.evaluate()
}

// End stops the load, waits for requests in flight, and returns the report.
func (g *Generator) End() Report {
	g.cancel()
	<-g.done
	g.mu.Lock()
	defer g.mu.Unlock()
	report := Report{Took: g.took}
	for _, p := range g.phases {
		if len(p.records) > 0 || p.Want != nil {
			report.Rows = append(report.Rows, p.evaluate())
		}
	}
	return report
}

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
