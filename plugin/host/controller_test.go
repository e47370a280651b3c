// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// failing is a Reconciler that fails, and keeps what was reported last.
type failing struct {
	err      error
	reported string
}

func (f *failing) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, f.err
}

func (f *failing) Report(_ context.Context, _ client.ObjectKey, reason, _ string) error {
	f.reported = reason
	return nil
}

func TestErrorsAreReported(t *testing.T) {
	for _, test := range []struct {
		name, why string
		err       error
		// atOnce and lasting are what was reported at first, and after half a minute.
		atOnce, lasting string
	}{
		{"no connection", "a driver that restarts is back soon", status.Error(codes.Unavailable, "connection refused"), "", "DriverUnavailable"},
		{"no answer", "a driver that hangs is like one that is away", status.FromContextError(context.DeadlineExceeded).Err(), "", "DriverUnavailable"},
		{"the driver can't answer yet", "it fills its caches", drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "pods"), "", "NotSynced"},
		{"another host was faster", "the next look shows it", drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "another"), "", "ReleaseInProgress"},
		{"refused", "a user must act", drivererr.New(pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER, "KServe"), "ForeignOwner", "ForeignOwner"},
		{"no reason of the contract", "such as that of another driver", status.Error(codes.Unimplemented, "unknown method"), "Unimplemented", "Unimplemented"},
		{"of the API server", "such as a webhook that is away", errors.New("failed calling webhook"), "NotWritten", "NotWritten"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &failing{err: test.err}
				r := &host.Reporting{Of: f, Logger: slog.New(slog.DiscardHandler)}
				once := func(want string) {
					t.Helper()
					f.reported = ""
					result, err := r.Reconcile(t.Context(), reconcile.Request{})
					assert.True(t, result.RequeueAfter > 0 || err != nil, "%s: it is not tried again", test.why)
					assert.Equal(t, want, f.reported, test.why)
				}
				once(test.atOnce)
				time.Sleep(20 * time.Second) //nolint:forbidigo // The bubble's clock.
				once(test.atOnce)
				time.Sleep(11 * time.Second) //nolint:forbidigo // The bubble's clock.
				once(test.lasting)
				f.err = nil
				_, err := r.Reconcile(t.Context(), reconcile.Request{})
				assert.NoError(t, err)
				f.err = test.err
				once(test.atOnce) // that one is over
			})
		})
	}
}
