// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
)

// metric serves a metric and creates the AnalysisTemplate that reads it.
func (e *env) metric() *atomic.Int64 {
	e.T.Helper()
	figure := &atomic.Int64{}
	figure.Store(100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, fmt.Sprintf(`{"success": %d}`, figure.Load()))
	}))
	e.T.Cleanup(server.Close)
	e.Apply(fmt.Sprintf(`
apiVersion: argoproj.io/v1alpha1
kind: AnalysisTemplate
metadata: {name: success}
spec:
  metrics:
  - name: success
    interval: 1s
    count: 3
    successCondition: result >= 95
    failureLimit: 1
    provider: {web: {url: %q, jsonPath: "{$.success}"}}
`, server.URL))
	return figure
}

const analysis = "- analysis: {templates: [{templateName: success}]}\n"

// A failed analysis aborts the Rollout, and the workload returns to the stable revision.
//
// Proves (test): Argo: deletion; analysis; the controller is killed in each phase.
func TestAnalysisFails(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	figure := e.metric()
	e.deploy(slow())
	e.rollout(step("upgrade: 25%") + analysis + step("upgrade: 100%") + step("promote: true"))
	e.awaitRest("v1")
	before := e.Identities()
	figure.Store(10)
	e.edit("v2")
	e.awaitAborted("v1")
	e.same(before)
	figure.Store(100)
	e.argo("retry", "rollout", name)
	e.MustRest("v2")
	e.awaitPhase(v1alpha1.RolloutPhaseHealthy)
}
