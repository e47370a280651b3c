// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"
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

// request is one line of the audit log, as far as it matters.
type request struct {
	AuditID    string    `json:"auditID"`
	Stage      string    `json:"stage"`
	Verb       string    `json:"verb"`
	RequestURI string    `json:"requestURI"`
	At         time.Time `json:"requestReceivedTimestamp"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
}

func (r request) resource() string {
	switch {
	case r.ObjectRef.Resource == "":
		return r.RequestURI
	case r.ObjectRef.Subresource != "":
		return r.ObjectRef.Resource + "/" + r.ObjectRef.Subresource
	default:
		return r.ObjectRef.Resource
	}
}

func (r request) isWrite() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, r.Verb)
}

func (r request) isRead() bool { return r.Verb == "get" || r.Verb == "list" }

// requests reads what these users have asked for since then, each request once. The API server writes a line before it
// answers, so nothing is missing.
func (b *bench) requests(since time.Time, users ...string) ([]request, error) {
	f, err := os.Open(b.cluster.AuditLog())
	if err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	defer func() { _ = f.Close() }()
	var found []request
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("read audit log: %w", err)
		}
		if !slices.Contains(users, r.User.Username) || r.At.Before(since) || seen[r.AuditID] {
			continue
		}
		seen[r.AuditID] = true
		found = append(found, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	return found, nil
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
		if r.isRead() {
			f.Reads++
			f.ReadsOf = append(f.ReadsOf, r.Verb+" "+r.RequestURI)
		}
		if still.holds(r.At) {
			f.Idle++
		}
		i := slices.IndexFunc(releases, func(w window) bool { return w.holds(r.At) })
		if i < 0 {
			continue
		}
		kind := r.Verb + " " + r.resource()
		if r.Response.Code >= http.StatusBadRequest {
			kind += fmt.Sprintf(", answered %d", r.Response.Code)
		}
		byKind[kind]++
		switch {
		case r.isWrite() && r.ObjectRef.Resource == "events":
			events[i]++
		case r.isWrite():
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

// count counts what hosts asked for in their releases.
func (f *hostFigures) count(b *bench, users []string, releases []window) error {
	all, err := b.requests(releases[0].from, users...)
	if err != nil {
		return err
	}
	writes, reads, events := make([]int, len(releases)), make([]int, len(releases)), make([]int, len(releases))
	for _, r := range all {
		i := slices.IndexFunc(releases, func(w window) bool { return w.holds(r.At) })
		switch {
		case i < 0, r.ObjectRef.Resource == "leases": // who leads is asked for by the clock
		case r.isWrite() && r.ObjectRef.Resource == "events":
			events[i]++
		case r.isWrite():
			writes[i]++
		case r.isRead():
			reads[i]++
		}
	}
	f.Writes, f.Reads, f.Events = medianOf(writes), medianOf(reads), medianOf(events)
	return nil
}
