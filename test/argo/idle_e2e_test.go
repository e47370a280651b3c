// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// Argo calls the traffic router in each reconcile. While nothing changes, this costs no request to the API server.
//
// It is not parallel: the plugins' requests without a namespace, such as discovery when a release begins, can't be attributed to
// a test.
//
// Proves: Argo: idle costs no request; a driver apart; handover; the examples.
func TestIdle(t *testing.T) {
	e := newRouted(t, routed)
	const reconciles = 20
	measure := func(when string) {
		t.Helper()
		for e.touched(when, 3) != nil {
			// Requests in progress end first.
		}
		found := e.touched(when, reconciles)
		t.Logf("%s: %d reconciles of the controller, %d requests of the plugins: %s", when, reconciles, len(found), count(found))
		// A plugin that has just started checks its permissions once more, however often the controller reconciles.
		begun := slices.DeleteFunc(slices.Clone(found), func(r string) bool { return !strings.HasPrefix(r, "create selfsubject") })
		if len(found)-len(begun) > 1 || len(begun) > reconciles/3 {
			t.Errorf("%s: %d requests in %d reconciles: %s", when, len(found), reconciles, count(found))
		}
	}
	measure("at rest")
	e.edit("v2")
	e.awaitPause(1)
	measure("paused in mid-release")
	e.argo("abort", name)
	e.awaitAborted("v1")
	e.mustBeRestored()
	measure("aborted")
}

// touched makes Argo reconcile the Rollout repeatedly, and returns the plugins' requests to the API server in that time.
func (e *env) touched(when string, times int) []string {
	e.T.Helper()
	begin, done := audit.Mark(e.T, e.Kube, e.Namespace), e.reconciles()
	for i := range times {
		e.patch(fmt.Sprintf(`{"metadata": {"annotations": {"example.com/touched": "%s-%d-%s"}}}`, when, i, begin))
		e.Eventually("Argo has looked again", func(context.Context) error {
			if now := e.reconciles(); now <= done {
				return errors.New("not yet")
			}
			return nil
		})
		done = e.reconciles()
	}
	return e.requests(begin)
}

var reconcileCount = regexp.MustCompile(`(?m)^rollout_reconcile_count\{(.*)\} ([0-9.e+]+)$`)

// reconciles returns how often the controller has reconciled the Rollout.
func (e *env) reconciles() int {
	e.T.Helper()
	request, err := http.NewRequestWithContext(e.T.Context(), http.MethodGet, e.Cluster.ArgoMetrics(), nil)
	require.NoError(e.T, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(e.T, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(e.T, err)
	total := 0.0
	for _, match := range reconcileCount.FindAllSubmatch(text, -1) {
		if strings.Contains(string(match[1]), fmt.Sprintf("namespace=%q", e.Namespace)) {
			n, _ := strconv.ParseFloat(string(match[2]), 64)
			total += n
		}
	}
	return int(total)
}

// requests returns the plugins' requests for this namespace, and those without a namespace, since a mark in the audit log.
// Plugin and controller have the same account and differ in their user agents.
func (e *env) requests(since string) []string {
	e.T.Helper()
	user := "system:serviceaccount:" + cluster.ArgoNamespace + ":" + cluster.ArgoServiceAccount
	var found []string
	for _, r := range audit.Between(e.T, e.Cluster.AuditLog(), since, audit.Mark(e.T, e.Kube, e.Namespace), user) {
		if r.User.Username != user || strings.Contains(r.UserAgent, "rollouts-controller") || r.Verb == "watch" {
			continue
		}
		if r.ObjectRef.Namespace == e.Namespace || r.ObjectRef.Namespace == "" {
			found = append(found, r.String())
		}
	}
	return found
}

// count counts equal requests.
func count(all []string) string {
	n := map[string]int{}
	for _, one := range all {
		n[one]++
	}
	var out []string
	for _, one := range slices.Sorted(maps.Keys(n)) {
		out = append(out, fmt.Sprintf("%d %s", n[one], one))
	}
	return strings.Join(out, ", ")
}
