// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

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
