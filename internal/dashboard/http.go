// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// aliveInterval is how often a browser without news gets a comment, so that a connection that broke is noticed.
	aliveInterval = 15 * time.Second
	// writeTimeout ends the stream of a browser that reads nothing. It reconnects when it does.
	writeTimeout = 30 * time.Second
	// historyTimeout bounds the request of a history.
	historyTimeout = 10 * time.Second
)

// Handler serves the page, its events, and histories. It has GET only.
func (d *Dashboard) Handler() http.Handler {
	pages, err := fs.Sub(web, "web")
	if err != nil {
		panic(err) // the directory is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(pages))
	mux.HandleFunc("GET /events", d.events)
	mux.HandleFunc("GET /history/{namespace}/{name...}", d.history)
	return d.protect(http.StripPrefix("/"+d.secret, mux))
}

// headers forbid scripts and resources from elsewhere, scripts and styles in the page, frames, forms, and that the path is passed on.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
	"Cache-Control":                "no-store",
}

// protect refuses requests for another host, which are those of a foreign site whose name was rebound to this address, and requests
// without the secret.
func (d *Dashboard) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		// The secret is compared before any file or state is looked at.
		secret, _, found := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch {
		case !allowedHost(r.Host):
			http.Error(w, "the dashboard is served for IP addresses and localhost only: open the URL that lockstep dashboard printed", http.StatusForbidden)
		case !found || subtle.ConstantTimeCompare([]byte(secret), []byte(d.secret)) != 1:
			http.Error(w, "not found: open the URL that lockstep dashboard printed; it changes with each start", http.StatusNotFound)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// allowedHost reports whether a Host header has an IP address or localhost, which no DNS server can point elsewhere.
func allowedHost(header string) bool {
	name := (&url.URL{Host: header}).Hostname()
	_, err := netip.ParseAddr(name)
	return err == nil || name == "localhost"
}

// events sends the newest state of every workload, and then of those that changed since the last message.
func (d *Dashboard) events(w http.ResponseWriter, r *http.Request) {
	// The subscription begins before the first states are read, so that no change in between is missed.
	changes, stop := d.changed.SubscribeAll()
	defer stop()
	alive := time.NewTicker(aliveInterval)
	defer alive.Stop()
	w.Header().Set("Content-Type", "text/event-stream")
	for keys := d.keys(); d.send(w, keys); {
		select {
		case <-r.Context().Done():
			return
		case <-changes.Signal:
			keys = changes.Take()
		case <-alive.C:
			keys = nil
		}
	}
}

// send writes the messages of keys, or a comment without any, and reports whether the browser took them. No lock is held while it reads.
func (d *Dashboard) send(w http.ResponseWriter, keys []string) bool {
	control := http.NewResponseController(w)
	write := func(message []byte) bool {
		// Without a deadline a browser that has stopped reading would stay connected for hours.
		if control.SetWriteDeadline(time.Now().Add(writeTimeout)) != nil {
			return false
		}
		_, err := w.Write(message)
		return err == nil
	}
	// A comment finds a connection that has broken, since only a write does.
	if len(keys) == 0 && !write([]byte(": alive\n\n")) {
		return false
	}
	// The status is last, since its key is the least: a page that is synced has every workload.
	slices.SortFunc(keys, func(a, b string) int { return strings.Compare(b, a) })
	for _, key := range keys {
		if !write(d.message(key)) {
			return false
		}
	}
	return control.Flush() == nil
}

// revision is a row of a history.
type revision struct {
	// Cells are those of `lockstep history`, with the time in RFC 3339.
	Cells []string `json:"cells"`
	// Took is how long its release took. It is empty until the end is recorded.
	Took string `json:"took"`
	// From is the newest revision before that was not rolled back, and Diff the change of the template since.
	From string `json:"from"`
	Diff string `json:"diff"`
}

// history answers with the revisions of a workload that the page shows.
func (d *Dashboard) history(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	// A path can only name workloads that the page shows: the driver may know more than the scope allows.
	known := d.workloads[r.PathValue("namespace")+"/"+r.PathValue("name")]
	d.mu.Unlock()
	if known == nil {
		http.Error(w, "no such workload under hold", http.StatusNotFound)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), historyTimeout)
	defer cancel()
	response, err := d.driver.ListRevisions(ctx, &pb.ListRevisionsRequest{Workload: known.ref, IncludeTemplates: true})
	if err != nil {
		http.Error(w, d.shorten(err).Error(), http.StatusBadGateway)
		return
	}
	all := response.GetRevisions()
	answer := make([]revision, len(all))
	for i, cells := range view.HistoryRows(all, func(at time.Time) string { return at.Format(time.RFC3339) }) {
		answer[i].Cells = cells
		if end := all[i].GetEndTime(); end != nil {
			answer[i].Took = view.Age(end.AsTime().Sub(all[i].GetCreateTime().AsTime()))
		}
		for _, before := range all[i+1:] {
			// A revision that was rolled back never became stable, so the change is against the last one that did.
			if before.GetOutcome() == pb.State_STATE_ROLLED_BACK {
				continue
			}
			answer[i].From = view.RevisionName(before)
			if answer[i].Diff, err = view.Diff(before, all[i]); err != nil {
				answer[i].Diff = err.Error()
			}
			break
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the browser went away
}
