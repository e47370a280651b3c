// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	completed  = pb.State_STATE_COMPLETED
	rolledBack = pb.State_STATE_ROLLED_BACK
)

// startBatch requests a batch without waiting for it.
func (w *workload) startBatch(id string, batch int32) {
	w.t.Helper()
	if _, err := w.tryUpgrade(id, batch, nil); err != nil {
		w.t.Fatal(err)
	}
}

// startFinalize requests the end of a release without waiting for it.
func (w *workload) startFinalize(id string, intent pb.FinalizeIntent) {
	w.t.Helper()
	if _, err := w.tryFinalize(id, intent, nil); err != nil {
		w.t.Fatal(err)
	}
}

// errNotYet is the error of conditions without further details.
var errNotYet = errors.New("not yet")

func isNotYet(err error) bool { return errors.Is(err, errNotYet) }

// record returns the release record in the cluster.
func (w *workload) record() *record { return recordOf(w.get()) }

// awaitObject waits for a condition on the cluster's objects rather than the driver's answers.
func (w *workload) awaitObject(what string, check func() bool) {
	w.t.Helper()
	w.eventually(what, func(context.Context) error {
		if !check() {
			return fmt.Errorf("not yet: %s", asJSON(w.record()))
		}
		return nil
	})
}
