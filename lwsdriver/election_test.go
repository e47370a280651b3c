// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// leaseRequests returns the verbs of all requests for Leases.
func leaseRequests(core *fake.Clientset) (verbs []string) {
	for _, a := range core.Actions() {
		if a.GetResource().Resource == "leases" {
			verbs = append(verbs, a.GetVerb())
		}
	}
	return verbs
}

// A driver whose caches can't be filled, or not watched, makes no request for the Lease, and its readiness names the cause. Its metric is 0.
func TestCampaignRequiresFilledCaches(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, cause string
		prevent     func(core *fake.Clientset, broken *atomic.Bool)
	}{
		{"pods can't be listed", "etcd is down", func(core *fake.Clientset, broken *atomic.Bool) {
			fakes.React(&core.Fake, "list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return broken.Load(), nil, apierrors.NewServiceUnavailable("etcd is down")
			})
		}},
		{"may not watch", "may not list and watch", func(core *fake.Clientset, broken *atomic.Bool) {
			lwstest.ForbidWatches(core, broken.Load)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			core := fake.NewClientset()
			lock, err := resourcelock.New(resourcelock.LeasesResourceLock, "default", leaseName, core.CoreV1(), core.CoordinationV1(),
				resourcelock.ResourceLockConfig{Identity: "test"})
			require.NoError(t, err)
			e := &election{lock: lock, log: slog.New(slog.DiscardHandler), elected: make(chan struct{})}
			registry := prometheus.NewPedanticRegistry()
			b := newFixtureWith(t, Options{election: e, Metrics: registry}, core, lwstest.NoRoutes(), lwstest.Unrecorded())
			var broken atomic.Bool
			broken.Store(true)
			test.prevent(core, &broken)
			b.run()
			b.eventually("readiness names the cause", func() bool { return strings.Contains(b.Ready().Error(), test.cause) })
			assert.Empty(t, leaseRequests(core), "requests for the Lease without filled caches")
			assert.Zero(t, readyMetric(t, registry), "lockstep_ready")
			broken.Store(false)
			b.eventually("the driver leads", b.Synced)
			got := readyMetric(t, registry)
			assert.Equal(t, 1.0, got, "lockstep_ready is %v once the driver leads", got)
			if got := leaseRequests(core); len(got) < 2 || got[0] != "get" || got[1] != "create" {
				t.Errorf("requests for the Lease: %v, want a get and a create first", got)
			}
		})
	}
}

// A driver whose renewals hang, as in a process that is suspended, does not lead once another one may.
func TestLeadsWhileRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core := fake.NewClientset()
		lock, err := resourcelock.New(resourcelock.LeasesResourceLock, "default", leaseName, core.CoreV1(), core.CoordinationV1(),
			resourcelock.ResourceLockConfig{Identity: "test"})
		require.NoError(t, err)
		var hangs atomic.Int64
		fakes.React(&core.Fake, "update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(time.Duration(hangs.Load())) //nolint:forbidigo // The bubble's clock.
			return false, nil, nil
		})
		e := &election{lock: lock, log: slog.New(slog.DiscardHandler), elected: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = e.run(ctx) })
		<-e.elected
		if time.Sleep(time.Minute); !e.isLeader() { //nolint:forbidigo // The bubble's clock.
			t.Error("it renews, and does not lead")
		}
		hangs.Store(int64(time.Hour))
		if time.Sleep(renewDeadline - retryPeriod - time.Second); !e.isLeader() { //nolint:forbidigo // The bubble's clock.
			t.Error("it does not lead, although no other may")
		}
		if time.Sleep(leaseDuration - renewDeadline + retryPeriod); e.isLeader() { //nolint:forbidigo // The bubble's clock.
			t.Error("it leads, although another may")
		}
		cancel()
		running.Wait()
	})
}

// A write that waits while the Lease is lost is not sent.
func TestLateWritesAreNotSent(t *testing.T) {
	sent := 0
	for _, test := range []struct {
		leads  *election
		method string
		want   int
	}{
		{nil, http.MethodPatch, 1},
		{&election{}, http.MethodGet, 1},
		{&election{}, http.MethodPatch, 0},
		{&election{}, http.MethodPost, 0},
		{&election{}, http.MethodDelete, 0},
	} {
		sent = 0
		transport := test.leads.guardWrites(roundTripper(func(*http.Request) (*http.Response, error) {
			sent++
			return &http.Response{Body: http.NoBody}, nil
		}))
		answer, err := transport.RoundTrip(httptest.NewRequest(test.method, "/", http.NoBody))
		if err == nil {
			_ = answer.Body.Close()
		}
		assert.True(t, sent == test.want && (err == nil) == (test.want == 1),
			"%s with an election %t: sent %d, %v", test.method, test.leads != nil, sent, err)
	}
}

// A write waits for its turn in the clients of the driver, so the check is behind it.
func TestClientsSendNoLateWrites(t *testing.T) {
	t.Parallel()
	sent := make(chan string, 10)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent <- r.Method
		w.WriteHeader(http.StatusNotFound)
	}))
	defer api.Close()
	d, err := New(&rest.Config{Host: api.URL}, Options{LeaseNamespace: "default"})
	require.NoError(t, err)
	err = d.core.CoreV1().Pods("default").Delete(t.Context(), "vllm-0", metav1.DeleteOptions{})
	assert.True(t, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_NOT_SYNCED && len(sent) == 0,
		"without the Lease: %v, %d requests", err, len(sent))
}
