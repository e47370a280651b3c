// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"net/http"
	"sync"
	"time"
)

// maxSkew is how far this machine's clock may be from the API server's before the latter counts. The header Date has whole seconds.
const maxSkew = 2 * time.Second

// clock is the API server's time, which dates the objects that deadlines and delays count from. This process's monotonic clock carries it
// on, so that no jump of a wall clock matters, and the header Date of each answer corrects it.
type clock struct {
	mu sync.Mutex
	// at is the time at the moment that began, which has a monotonic reading.
	at, began time.Time
}

func newClock() *clock {
	now := time.Now()
	return &clock{at: now, began: now}
}

// Now returns the time.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at.Add(time.Since(c.began))
}

// wrap returns a transport that corrects the clock by the answers of the API server.
func (c *clock) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		sent := c.Now()
		answer, err := next.RoundTrip(r)
		if err == nil {
			if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
				c.correct(date, sent)
			}
		}
		return answer, err //nolint:wrapcheck // the transport's own
	})
}

// correct sets the clock to the date of an answer, unless it agrees with it: the answer was dated after the request was sent.
func (c *clock) correct(date, sent time.Time) {
	now := c.Now()
	if !date.Before(sent.Add(-maxSkew)) && !date.After(now.Add(maxSkew)) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.began = date, time.Now()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
