// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

func probeRules() []Rule {
	return []Rule{
		{
			ID: "ReadinessProbeMissing", Severity: warning,
			Title: "The leader has no readiness probe",
			Why: "A leader counts as ready as soon as its process runs, which is long before the model is loaded: batches complete at once, " +
				"requests are sent to leaders that cannot answer, and a promotion replaces groups that serve by groups that do not",
			Details: "One container of the leader with a readiness probe is enough, and so is a readiness gate",
			Fix:     "Give the container that serves a readinessProbe that succeeds once the model is loaded, for example httpGet /health",
			Check:   readinessMissing,
		},
		{
			ID: "ReadinessSameAsLiveness", Severity: warning,
			Title: "The liveness probe equals the readiness probe, and fails no later",
			Why: "A busy leader is restarted with its whole group, instead of receiving no requests for a while. While the model loads it is " +
				"killed repeatedly",
			Details: "The same probe passes if liveness fails later: failureThreshold x periodSeconds is compared",
			Fix:     "Let liveness check less (that the process responds), give it a larger failureThreshold than readiness, or omit it",
			Check:   readinessIsLiveness,
		},
	}
}

func readinessMissing(s *Inventory) []Hit {
	leader := s.leader()
	if len(leader.Spec.ReadinessGates) > 0 || slices.ContainsFunc(leader.containers(), func(c container) bool { return c.ReadinessProbe != nil }) {
		return nil
	}
	return one(Hit{Field: leader.first("readinessProbe"), Message: "no container of the leader has a readiness probe"})
}

func readinessIsLiveness(s *Inventory) []Hit {
	var hits []Hit
	for _, t := range s.templates() {
		for _, c := range t.containers() {
			if c.ReadinessProbe == nil || c.LivenessProbe == nil ||
				!equality.Semantic.DeepEqual(c.ReadinessProbe.ProbeHandler, c.LivenessProbe.ProbeHandler) ||
				patience(c.LivenessProbe) > patience(c.ReadinessProbe) {
				continue
			}
			hits = append(hits, Hit{Field: c.field + ".livenessProbe", Message: fmt.Sprintf(
				"container %s is restarted after %s of the failures that take requests from it after %s", c.Name, patience(c.LivenessProbe), patience(c.ReadinessProbe))})
		}
	}
	return hits
}

// patience returns how long a probe tolerates failures.
func patience(p *corev1.Probe) time.Duration {
	// The API server's defaults, which a manifest may leave out.
	period, failures := p.PeriodSeconds, p.FailureThreshold
	if period == 0 {
		period = 10
	}
	if failures == 0 {
		failures = 3
	}
	return time.Duration(period) * time.Duration(failures) * time.Second
}
