// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/audit"
)

// window is a span of time.
type window struct{ from, to time.Time }

func (w window) holds(t time.Time) bool { return !t.Before(w.from) && t.Before(w.to) }

func windowsOf(all []took) []window {
	out := make([]window, 0, len(all))
	for _, t := range all {
		out = append(out, t.window)
	}
	return out
}

// requests returns the requests of some users since then. The API server logs before it responds, so none is missing.
func (b *bench) requests(since time.Time, users ...string) ([]audit.Event, error) {
	all, err := audit.ReadFile(b.cluster.AuditLog(), "")
	return slices.DeleteFunc(all, func(r audit.Event) bool {
		return !slices.Contains(users, r.User.Username) || r.ReceivedAt.Before(since)
	}), err
}

// countRequests counts per release, and all reads since the driver served.
func (b *bench) countRequests(serving time.Time, releases []window, still window) (*requestFigures, error) {
	all, err := b.requests(serving, driverUser)
	if err != nil {
		return nil, err
	}
	f := &requestFigures{Releases: len(releases), IdleSeconds: seconds(still.to.Sub(still.from))}
	writes, events := make([]int, len(releases)), make([]int, len(releases))
	byKind := map[string]int{}
	for _, r := range all {
		if r.IsRead() {
			f.Reads++
			f.ReadsOf = append(f.ReadsOf, r.Verb+" "+r.RequestURI)
		}
		if still.holds(r.ReceivedAt) {
			f.Idle++
		}
		i := slices.IndexFunc(releases, func(w window) bool { return w.holds(r.ReceivedAt) })
		if i < 0 {
			continue
		}
		kind := r.String()
		if r.ResponseStatus.Code >= http.StatusBadRequest {
			kind += fmt.Sprintf(", answered %d", r.ResponseStatus.Code)
		}
		byKind[kind]++
		switch {
		case r.IsWrite() && r.ObjectRef.Resource == "events":
			events[i]++
		case r.IsWrite():
			writes[i]++
		}
	}
	f.Writes, f.MaxWrites = medianOf(writes), slices.Max(writes)
	f.Events = medianOf(events)
	for kind, n := range byKind {
		f.ByKind = append(f.ByKind, perRelease{Request: kind, PerRelease: float64(n) / float64(len(releases))})
	}
	slices.SortFunc(f.ByKind, func(a, b perRelease) int { return compare(b.PerRelease, a.PerRelease, a.Request, b.Request) })
	return f, nil
}

// count counts the hosts' requests in their releases.
func (f *hostFigures) count(b *bench, users []string, releases []window) error {
	all, err := b.requests(releases[0].from, users...)
	if err != nil {
		return err
	}
	writes, reads, events := make([]int, len(releases)), make([]int, len(releases)), make([]int, len(releases))
	for _, r := range all {
		i := slices.IndexFunc(releases, func(w window) bool { return w.holds(r.ReceivedAt) })
		switch {
		case i < 0, r.ObjectRef.Resource == "leases": // who leads is asked for by the clock
		case r.IsWrite() && r.ObjectRef.Resource == "events":
			events[i]++
		case r.IsWrite():
			writes[i]++
		case r.IsRead():
			reads[i]++
		}
	}
	f.Writes, f.Reads, f.Events = medianOf(writes), medianOf(reads), medianOf(events)
	return nil
}
