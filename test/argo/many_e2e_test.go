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
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// More Rollouts wait for groups that never start than the controller has workers: another Rollout still progresses.
//
// Proves: Argo: its own traffic steps, with requests; waiting steps leave workers for others.
func TestWaitingStepsLeaveWorkers(t *testing.T) {
	t.Parallel()
	const stuck = 12
	e := newRelease(t, step("upgrade: 50%")+step("upgrade: 100%")+step("promote: true"))
	alone := e.takes("v2")
	small := func(i int, tag, behavior string) string {
		return fmt.Sprintf(`
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: stuck-%d}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 1
    workerTemplate:
      metadata: {annotations: {%s: %q}}
      spec: {containers: [{name: server, image: "example.com/stuck:%s"}]}
`, i, cluster.AnnotationBehavior, behavior, tag)
	}
	for i := range stuck {
		e.Apply(small(i, "v1", ""))
		rollout := fmt.Sprintf("stuck-%d", i)
		e.Apply(strings.Replace(rolloutManifest(rollout, step("upgrade: 100%")+step("promote: true")), "workload: "+name, "workload: "+rollout, 1))
	}
	each := func(what string, check func(*v1alpha1.Rollout) bool) {
		t.Helper()
		last := errors.New("nothing")
		e.Eventually(what, func(ctx context.Context) error {
			for i := range stuck {
				r, err := e.tryGet(ctx, fmt.Sprintf("stuck-%d", i))
				if err != nil {
					return fmt.Errorf("%w; before: %w", err, last)
				}
				if !check(r) {
					last = fmt.Errorf("%s: %s %s", r.Name, r.Status.Phase, stepMessages(r))
					return last
				}
			}
			return nil
		})
	}
	e.Eventually("all are held", func(ctx context.Context) error {
		sets, err := e.Sets().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range sets.Items {
			rolling := sets.Items[i].Spec.RolloutStrategy.RollingUpdateConfiguration
			if sets.Items[i].Status.ReadyReplicas == 0 || rolling == nil || !record.SameRolling(*rolling, record.Hold()) {
				return fmt.Errorf("%s is not", sets.Items[i].Name)
			}
		}
		return nil
	})
	each("all are healthy", func(r *v1alpha1.Rollout) bool { return r.Status.Phase == v1alpha1.RolloutPhaseHealthy })
	for i := range stuck {
		e.Apply(small(i, "v2", cluster.BehaviorNeverReady))
	}
	each("all wait", func(r *v1alpha1.Rollout) bool { return ran(r, 0).Phase == v1alpha1.StepPluginPhaseRunning })
	beside := e.takes("v3")
	t.Logf("a release alone took %s, one beside %d that wait %s", alone.Round(100*time.Millisecond), stuck, beside.Round(100*time.Millisecond))
	// A worker that is blocked for a whole wait costs 20 s.
	limit := 4*alone + 30*time.Second
	assert.LessOrEqual(t, beside, limit, "it took more than %s", limit)
}

// takes returns the duration of a release from the edit to the end.
func (e *env) takes(tag string) time.Duration {
	e.T.Helper()
	start := time.Now()
	e.edit(tag)
	e.await("the release is over", func(r *v1alpha1.Rollout) bool {
		stable, _, err := e.counts(e.T.Context(), tag)
		return err == nil && stable == groups && r.Status.Phase == v1alpha1.RolloutPhaseHealthy
	})
	return time.Since(start)
}

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
