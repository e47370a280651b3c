// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	lockstepconfig "github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/test/audit"
)

// window is a span of time.
type window struct{ from, to time.Time }

func (w window) holds(t time.Time) bool { return !t.Before(w.from) && t.Before(w.to) }

// requests returns the driver's requests since then. The API server logs before it responds, so none is missing.
func (b *bench) requests(since time.Time) ([]audit.Event, error) {
	const driver = "system:serviceaccount:" + lockstepconfig.Namespace + ":" + lockstepconfig.ServiceAccount
	all, err := audit.ReadFile(b.cluster.AuditLog(), driver)
	return slices.DeleteFunc(all, func(r audit.Event) bool { return r.User.Username != driver || r.ReceivedAt.Before(since) }), err
}

// count counts requests by the release in which they were made, and by kind. Events do not count as writes.
func count(all []audit.Event, releases []window) (writes []int, byKind map[string]int) {
	writes, byKind = make([]int, len(releases)), map[string]int{}
	for _, r := range all {
		i := slices.IndexFunc(releases, func(w window) bool { return w.holds(r.ReceivedAt) })
		if i < 0 || r.ObjectRef.Resource == "leases" { // who leads is asked for by the clock
			continue
		}
		kind := r.String()
		if r.ResponseStatus.Code >= http.StatusBadRequest {
			kind += fmt.Sprintf(", answered %d", r.ResponseStatus.Code)
		}
		byKind[kind]++
		if r.IsWrite() && r.ObjectRef.Resource != "events" {
			writes[i]++
		}
	}
	return writes, byKind
}

// reportRequests reports the driver's requests per release, all its reads since it served, and all its requests of an idle time.
func (b *bench) reportRequests(r *report, serving time.Time, releases []window, still window) error {
	all, err := b.requests(serving)
	if err != nil {
		return err
	}
	writes, byKind := count(all, releases)
	reads, inRest := 0, 0
	for _, request := range all {
		if request.IsRead() {
			reads++
			b.logf("read: %s %s", request.Verb, request.RequestURI)
		}
		if still.holds(request.ReceivedAt) {
			inRest++
		}
	}
	most := slices.Max(writes)
	t := r.table(fmt.Sprintf("REQUESTS of the driver, %d releases", len(releases)), "per release")
	for _, kind := range slices.Sorted(maps.Keys(byKind)) {
		t.row(kind, "%.1f", float64(byKind[kind])/float64(len(releases)))
	}
	t.row("writes, without events", "%.1f (most: %d)", medianOf(writes), most)
	t.row("GET and LIST since it served", "%d in all", reads)
	t.row("any request in rest", "%d in %.0f s", inRest, seconds(still.to.Sub(still.from)))
	r.aim(reads == 0, "GET and LIST after start-up", "0", "%d", reads)
	r.aim(most <= 12, "writes per 4-batch release, worst", "at most 12", "%d", most)
	return nil
}
