// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

var probeRules = []Rule{
	{
		ID: "ReadinessProbeMissing", Severity: warning,
		Title: "The leader has no readiness probe",
		Why: "A leader counts as ready as soon as its process runs, which is long before the model is loaded: batches complete at once, " +
			"requests are sent to leaders that cannot answer, and a promotion replaces groups that serve by groups that do not",
		Details: "One container of the leader with a readiness probe is enough, and so is a readiness gate",
		Fix:     "Give the container that serves a readinessProbe that succeeds once the model is loaded, for example httpGet /health",
		Check: func(s *Inventory, report func(Hit)) {
			leader := s.leader()
			probed := slices.ContainsFunc(leader.containers(), func(c container) bool { return c.ReadinessProbe != nil })
			// A readiness gate keeps the pod unready as well.
			if len(leader.Spec.ReadinessGates) == 0 && !probed {
				report(Hit{Field: leader.first("readinessProbe"), Message: "no container of the leader has a readiness probe"})
			}
		},
	},
}

var endingRules = []Rule{
	{
		ID: "PreStopMissing", Severity: warning,
		Title: "The leader has no preStop hook",
		Why: "A deleted pod receives SIGTERM at once, while proxies and gateways still send it requests until the endpoints propagate. " +
			"Those requests fail, for every group that a release replaces",
		Fix: "Give the container that serves lifecycle.preStop.sleep of as many seconds as endpoints take to propagate",
		Check: func(s *Inventory, report func(Hit)) {
			if preStop(s.leader()) == nil {
				report(Hit{Field: s.leader().first("lifecycle.preStop"), Message: "no container of the leader has a preStop hook"})
			}
		},
	},
	{
		ID: "PreStopTooShort", Severity: warning,
		Title: "The leader's preStop hook is shorter than endpoints take to propagate",
		Why:   "Requests still reach a pod that is terminating, and fail",
		Details: "The duration is known for a `sleep` hook and for a command that calls `sleep` outside of loops; other hooks pass. " +
			"Without `--endpoint-propagation` 5 seconds are assumed",
		Fix: "Let it wait longer, or set the time that endpoints take in your cluster (--endpoint-propagation)",
		Check: func(s *Inventory, report func(Hit)) {
			want := cmp.Or(s.Expect.EndpointPropagation, DefaultPropagation)
			if h := preStop(s.leader()); h != nil && h.known && h.took < want {
				report(Hit{Field: h.field + ".lifecycle.preStop", Message: fmt.Sprintf(
					"the leader waits %s before it ends, and endpoints take %s to propagate", h.took, want)})
			}
		},
	},
	{
		ID: "GracePeriodBelowPreStop", Severity: warning,
		Title: "The grace period ends before the preStop hook does",
		Why:   "The hook runs within terminationGracePeriodSeconds: the process is killed without SIGTERM, and every request in flight fails",
		Fix:   "Set terminationGracePeriodSeconds to the hook's time and that of the longest request",
		Check: func(s *Inventory, report func(Hit)) {
			for _, t := range s.templates() {
				if h := preStop(t); h != nil && h.known && h.took > 0 && gracePeriod(t) <= h.took {
					report(Hit{Field: t.field + ".spec.terminationGracePeriodSeconds", Message: fmt.Sprintf(
						"the grace period is %s, and the preStop hook of container %s takes %s of it", gracePeriod(t), h.Name, h.took)})
				}
			}
		},
	},
	{
		ID: "GracePeriodBelowLongestRequest", Severity: warning, Needs: LongestRequests,
		Title:   "The grace period ends before the longest request does",
		Why:     "Requests that are still running when the grace period ends are aborted",
		Details: "Only with `--longest-request`: no object states how long requests take",
		Fix:     "Set terminationGracePeriodSeconds to the preStop hook's time and that of the longest request",
		Check: func(s *Inventory, report func(Hit)) {
			t, need := s.leader(), s.Expect.LongestRequest
			text := fmt.Sprintf("the longest request takes %s", need)
			// Kubernetes counts the hook as part of the grace period.
			if h := preStop(t); h != nil && h.known {
				need += h.took
				text += fmt.Sprintf(" and the preStop hook before it %s", h.took)
			}
			if gracePeriod(t) < need {
				report(Hit{
					Field:   t.field + ".spec.terminationGracePeriodSeconds",
					Message: fmt.Sprintf("the leader's grace period is %s, and %s", gracePeriod(t), text),
					Fix:     fmt.Sprintf("Set terminationGracePeriodSeconds to %d or more", int(need.Seconds())),
				})
			}
		},
	},
}

// hook is the longest preStop hook of a pod.
type hook struct {
	container

	took time.Duration
	// known is false if how long it takes is unknown.
	known bool
}

// preStop returns the longest hook, nil if there is none.
func preStop(t template) *hook {
	var longest *hook
	for _, c := range t.containers() {
		if c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
			continue
		}
		took, known := hookDuration(c.Lifecycle.PreStop)
		// A hook of unknown length counts as the longest, so that no rule judges by a shorter one.
		if longest == nil || longest.known && (!known || took > longest.took) {
			longest = &hook{c, took, known}
		}
	}
	return longest
}

// sleeps matches a call of sleep in a shell command, loops a command that may call it any number of times.
var (
	sleeps = regexp.MustCompile(`\bsleep\s+([0-9]+(?:\.[0-9]+)?)([smh]?)\b`)
	loops  = regexp.MustCompile(`\b(for|until|while)\b`)
)

// hookDuration returns how long a hook takes. That is unknown of one that sends a request, or runs a program or a loop.
func hookDuration(h *corev1.LifecycleHandler) (time.Duration, bool) {
	switch {
	case h.Sleep != nil:
		return time.Duration(h.Sleep.Seconds) * time.Second, true
	case h.Exec == nil:
		return 0, false
	}
	command := strings.Join(h.Exec.Command, " ")
	found := sleeps.FindAllStringSubmatch(command, -1)
	if len(found) == 0 || loops.MatchString(command) {
		return 0, false
	}
	var sum time.Duration
	for _, m := range found {
		took, err := time.ParseDuration(m[1] + cmp.Or(m[2], "s"))
		if err != nil {
			return 0, false
		}
		sum += took
	}
	return sum, true
}

func gracePeriod(t template) time.Duration {
	return time.Duration(ptr.Deref(t.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)) * time.Second
}
