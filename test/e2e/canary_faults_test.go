// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

const unavailable = pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE

// A cluster without LWS, and an API server that stops in mid-release: the driver reports it, and continues once it can. The test
// has its own cluster.
//
// Proves: An API server that stops; no LWS yet.
func TestCanaryControlPlaneFaults(t *testing.T) {
	t.Parallel()
	c := suite.Own(t, cluster.WithoutLWS(), cluster.WithNodes(4, nil))
	e := newEnvIn(t, c)
	e.driver = driver.Prepare(t, driver.Kubeconfig(t, c), e.namespace)
	e.driver.Begin()
	missing := e.existing("model")

	missing.awaitError("LWS is missing", pb.ErrorReason_ERROR_REASON_WORKLOAD_API_MISSING)
	_, err := missing.tryInitialize("r1", quarters())
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_WORKLOAD_API_MISSING, "v0.9.0")
	require.NoError(t, c.InstallLWS(t.Context()))
	missing.awaitError("the driver has found LWS", pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND)

	w := e.adopt(model("model", 3, 2))
	w.edit(image("v2"))
	w.initialize("r1", quarters())
	w.upgrade("r1", 2)
	// The API server stops right after the promotion was requested, and the driver restarts during the outage.
	w.outage(func() {
		w.driver.Kill()
		w.driver.Begin()
		w.awaitError("the API server is down", unavailable)
		_, err = w.tryFinalize("r1", promote, nil)
		mustFail(t, err, unavailable)
	}, func() { w.startFinalize("r1", promote) })
	w.awaitState(completed)
	w.mustRun("v2")
	w.mustBeIdle()

	// An LWS that does not set observedGeneration is too old. Its controller is stopped, since it would set the field.
	require.NoError(t, c.StopComponent(t.Context(), cluster.LWS))
	if _, err := w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace).Patch(t.Context(), w.name, types.MergePatchType,
		[]byte(`{"status":{"observedGeneration":null}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	w.eventually("the driver refuses an old LWS", func(context.Context) error {
		if _, err := w.tryInitialize("r2", quarters()); plugin.Reason(err) != pb.ErrorReason_ERROR_REASON_WORKLOAD_API_TOO_OLD {
			return fmt.Errorf("the driver answers %w", err)
		}
		return nil
	})
}

// outage stops the API server, runs meanwhile, and starts it again. Kubernetes' own controllers are stopped during the outage:
// for the garbage collector see Settle, and the scheduler exits when the answer to a binding is lost. last runs after they
// are stopped and before the API server is.
func (w *workload) outage(meanwhile, last func()) {
	w.t.Helper()
	ctx, controllers := w.t.Context(), []string{cluster.ControllerManager, cluster.Scheduler}
	must := func(err error) {
		w.t.Helper()
		require.NoError(w.t, err)
	}
	for _, name := range controllers {
		must(w.cluster.StopComponent(ctx, name))
	}
	if last != nil {
		last()
	}
	must(w.cluster.StopAPIServer(ctx))
	meanwhile()
	must(w.cluster.StartAPIServer(ctx))
	for _, name := range controllers {
		must(w.cluster.StartComponent(ctx, name))
	}
	must(w.cluster.Settle(ctx))
}

// awaitError waits until CalculateBatchContext fails with this reason.
func (w *workload) awaitError(what string, reason pb.ErrorReason) {
	w.t.Helper()
	w.eventually(what, func(ctx context.Context) error {
		if _, err := w.tryContext(ctx); plugin.Reason(err) != reason {
			return fmt.Errorf("the driver answers %w", err)
		}
		return nil
	})
}

// A driver with the permissions of config/base in one namespace only works there; a driver that lacks a permission names it.
//
// Proves (test): The shipped RBAC: one namespace; a missing permission is named.
func TestCanaryPermissions(t *testing.T) {
	t.Parallel()
	c := cluster.Shared(t)

	t.Run("one namespace", func(t *testing.T) {
		e := newEnvIn(t, c)
		e.driver = driver.Start(t, e.grant("enough", nil), e.namespace)
		w := e.adopt(model("model", 2, 2))
		w.edit(image("v2"))
		w.release("r1", policy("100%"))
		w.mustHaveEvents("ReleaseCompleted")
	})
	t.Run("no patch", func(t *testing.T) {
		e := newEnvIn(t, c)
		e.driver = driver.Start(t, e.grant("no-patch", func(resource, verb string) bool {
			return resource == "leaderworkersets" && verb == "patch"
		}), e.namespace)
		w := e.deploy(model("model", 2, 2)) // its template stays: LWS would roll the groups meanwhile
		_, err := e.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_FORBIDDEN, "patch", "leaderworkersets", "no-patch")
	})
	t.Run("no create", func(t *testing.T) {
		e := newEnvIn(t, c)
		e.driver = driver.Start(t, e.grant("no-create", func(resource, verb string) bool {
			return resource == "leaderworkersets" && verb == "create"
		}), e.namespace)
		w := e.adopt(model("model", 2, 2))
		w.edit(image("v2"))
		r := w.initialize("r1", quarters())
		c := r.GetContext()
		assert.True(t, c.GetState() == pb.State_STATE_FAILED && c.GetReason() == "Forbidden", "Initialize: %s", show(c))
		// Nothing was created, so a rollback succeeds.
		w.finalize("r1", rollback)
		w.mustBeIdle()
	})
	t.Run("optional parts left out", func(t *testing.T) {
		e := newEnvIn(t, c)
		e.driver = driver.Start(t, e.grant("core-only", func(resource, verb string) bool {
			return resource == "services" && verb != "list" && verb != "watch" || slices.Contains([]string{
				"endpointslices", "httproutes", "ingresses", "inferencepools", "horizontalpodautoscalers", "scaledobjects",
			}, resource)
		}), e.namespace)
		w := e.adopt(model("model", 2, 2))
		w.expose()
		w.edit(image("v2"))
		_, err := w.tryInitialize("r1", w.withTraffic(quarters()))
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_FORBIDDEN, "list", "ClusterRole lockstep-driver-gateway or lockstep-driver-ingress")
		_, err = w.tryInitialize("r1", blueGreen())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_FORBIDDEN, "list", "ClusterRole lockstep-driver-autoscalers")
		w.release("r1", policy("100%"))
	})
	for _, resource := range []string{"pods", "leaderworkersets", "controllerrevisions"} {
		// With the permission to watch alone the driver would start: a watch can send the initial list. With that to list alone informers
		// would list once, seem synced, and never see a change.
		for first, missing := range map[string][]string{"list": {"list", "watch"}, "watch": {"watch"}} {
			t.Run("no "+first+" of "+resource, func(t *testing.T) {
				e := newEnvIn(t, c)
				e.driver = driver.Prepare(t, e.grant("no-"+first+"-"+resource, func(r, verb string) bool {
					return r == resource && slices.Contains(missing, verb)
				}), e.namespace)
				e.driver.Begin()
				w := e.existing("model")
				w.awaitError("the driver names the permission", pb.ErrorReason_ERROR_REASON_FORBIDDEN)
				_, err := w.tryContext(t.Context())
				mustFail(t, err, pb.ErrorReason_ERROR_REASON_FORBIDDEN, first, resource)
			})
		}
	}
}

// account creates a service account with permissions in this namespace, and returns its kubeconfig.
func (e *env) account(name string, rules ...rbacv1.PolicyRule) string {
	e.t.Helper()
	tenant.Account(e.t, e.cluster, e.namespace, name, map[string][]rbacv1.PolicyRule{e.namespace: rules})
	path, err := driver.AccountKubeconfig(e.cluster, e.namespace, name)
	require.NoError(e.t, err)
	return path
}

// grant creates a service account with the permissions of config/base in this namespace, except those left out, and with more
// rules, and returns its kubeconfig.
func (e *env) grant(name string, leaveOut func(resource, verb string) bool, more ...rbacv1.PolicyRule) string {
	e.t.Helper()
	roles, err := config.DriverRules()
	require.NoError(e.t, err)
	for _, part := range slices.Sorted(maps.Keys(roles)) {
		for _, r := range roles[part] {
			r.Verbs = slices.DeleteFunc(r.Verbs, func(verb string) bool { return leaveOut != nil && leaveOut(r.Resources[0], verb) })
			if len(r.Verbs) > 0 {
				more = append(more, r)
			}
		}
	}
	return e.account(name, more...)
}

// Two drivers serve the same namespace and get concurrent calls.
//
// Proves: SPEC: the conformance suite; rule 4: wait and watches; rule 7: two drivers, two callers.
func TestCanaryTwoDrivers(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	second := driver.Start(t, driver.Kubeconfig(t, e.cluster), e.namespace)
	startup := annotated(cluster.AnnotationStartup, "100ms")

	t.Run("same-calls", func(t *testing.T) {
		one := e.in(t).adopt(model("same", 4, 2, startup))
		both := []*workload{one, one.withDriver(second)}
		one.edit(image("v2"))
		race(t, both, func(w *workload) error { _, err := w.tryInitialize("r1", quarters()); return err })
		for b := range int32(3) {
			race(t, both, func(w *workload) error { _, err := w.tryUpgrade("r1", b, long); return err })
		}
		race(t, both, func(w *workload) error { _, err := w.tryFinalize("r1", promote, long); return err })
		for _, w := range both {
			w.awaitState(completed)
		}
		one.mustRun("v2")
		one.mustBeIdle()
	})
	t.Run("two-releases", func(t *testing.T) {
		one := e.in(t).adopt(model("two", 4, 2, startup))
		both := []*workload{one, one.withDriver(second)}
		one.edit(image("v2"))
		won := make([]bool, 2)
		errs := parallel(both, func(i int, w *workload) error {
			_, err := w.tryInitialize(fmt.Sprint("r", i), quarters())
			won[i] = err == nil
			return err
		})
		require.NotEqual(t, won[1], won[0], "want exactly one of two releases to start: %v", errs)
		winner := 0
		if won[1] {
			winner = 1
		}
		mustFail(t, errs[1-winner], pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS)
		both[1-winner].upgrade(fmt.Sprint("r", winner), 0)
		both[winner].finalize(fmt.Sprint("r", winner), rollback)
		one.mustBeIdle()
	})
}

// race makes a call through each driver at the same time. A call may be aborted, and then succeeds when it is retried.
func race(t *testing.T, workloads []*workload, call func(*workload) error) {
	t.Helper()
	for i, err := range parallel(workloads, func(_ int, w *workload) error { return retryAborted(func() error { return call(w) }) }) {
		assert.NoError(t, err, "driver %d", i)
	}
}

func retryAborted(call func() error) error {
	var err error
	for range 10 {
		if err = call(); status.Code(err) != codes.Aborted {
			return err
		}
	}
	return fmt.Errorf("aborted ten times: %w", err)
}

func parallel(workloads []*workload, call func(int, *workload) error) []error {
	errs := make([]error, len(workloads))
	var calls sync.WaitGroup
	for i, w := range workloads {
		calls.Go(func() { errs[i] = call(i, w) })
	}
	calls.Wait()
	return errs
}

// The driver passes the conformance suite that the SDK has for any driver.
//
// Proves: SPEC: the conformance suite; rule 4: wait and watches; rule 7: two drivers, two callers.
// Proves (test, canary): SPEC rule 9 and errors: UNIMPLEMENTED; invalid requests name the field.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, style := range map[string]pb.Style{"canary": pb.Style_STYLE_CANARY, "partition": pb.Style_STYLE_PARTITION} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newEnv(t).deploy(model("model", 4, 2))
			for number, name := range pb.Capability_name {
				c := pb.Capability(number)
				assert.False(t, c != pb.Capability_CAPABILITY_UNSPECIFIED && !w.driver.Has(c), "it does not serve %s", name)
			}
			plugintest.Conformance(t, w.driver.Client, plugintest.Subject{
				Workload: w.ref(),
				Policy:   &pb.ReleasePolicy{Style: style, Batches: []string{"25%", "100%"}},
				Change: func(context.Context) error {
					w.edit(image("v2"))
					return nil
				},
			})
		})
	}
}
