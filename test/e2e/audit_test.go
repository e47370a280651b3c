// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// writes returns the successful writes of drivers in this namespace so far, without events, from the API server's audit log.
func (e *env) writes() []string {
	e.t.Helper()
	var found []string
	for _, r := range audit.Between(e.t, e.cluster.AuditLog(), "", audit.Mark(e.t, e.kube, e.namespace), e.namespace) {
		o := r.ObjectRef
		if r.IsWrite() && r.User.Username == driver.User && o.Namespace == e.namespace && o.Resource != "events" && r.ResponseStatus.Code < http.StatusBadRequest {
			found = append(found, r.Verb+" "+o.Resource+"/"+o.Name)
		}
	}
	return found
}

// busiest reports which users wrote most in the last minute, over all tests: a controller in a hot loop delays the others.
func (e *env) busiest() string {
	if e.cluster.AuditLog() == "" {
		return ""
	}
	f, err := os.Open(e.cluster.AuditLog())
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil {
		_, _ = f.Seek(max(0, info.Size()-64<<20), io.SeekStart)
	}
	log := bufio.NewReader(f)
	_, _ = log.ReadString('\n') // the seek may have cut the first line
	requests, err := audit.Read(log, "")
	if err != nil {
		return err.Error()
	}
	since, total, counts := time.Now().Add(-time.Minute), 0, map[string]int{}
	for _, r := range requests {
		if r.ReceivedAt.Before(since) || !r.IsWrite() {
			continue
		}
		total++
		counts[fmt.Sprintf("%s %s in %s: %d", r.User.Username, r, r.ObjectRef.Namespace, r.ResponseStatus.Code)]++
	}
	who := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return counts[b] - counts[a] })
	var b strings.Builder
	fmt.Fprintf(&b, "%d writes in the last minute over all tests; most of them:\n", total)
	for _, w := range who[:min(8, len(who))] {
		fmt.Fprintf(&b, "%d times %s\n", counts[w], w)
	}
	return b.String()
}
