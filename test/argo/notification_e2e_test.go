// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// The published trigger of Argo's notifications says when a release is over. After `promote --full` that is not when the Rollout is
// Healthy.
//
// Proves: Argo: analysis by revision with a real Prometheus; notification at the end.
func TestNotification(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var mu sync.Mutex
	var sent []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, string(body))
	}))
	t.Cleanup(server.Close)
	told := func(revision string) error {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Contains(sent, revision) {
			return fmt.Errorf("sent %v", sent)
		}
		return nil
	}
	raw := files.Read(t, "../../config/argo/notifications/argo-rollouts-notification-configmap.yaml")
	manifest := string(raw) + fmt.Sprintf(`
    webhook: {sink: {method: POST, body: '{{index .rollout.metadata.annotations "lockstep.dev/stable-revision"}}'}}
  service.webhook.sink: |
    url: %s
`, server.URL)
	suite.Apply(t, e.Cluster, cluster.ArgoNamespace, strings.Replace(manifest, "\n\n    webhook", "\n    webhook", 1))

	e.deploy(slow())
	e.rollout(quarters)
	e.awaitRest("v1")
	e.patch(`{"metadata": {"annotations": {"notifications.argoproj.io/subscribe.on-released.sink": ""}}}`)
	first := e.get(t.Context()).Annotations["lockstep.dev/stable-revision"]
	e.Eventually("the first revision is told", func(context.Context) error { return told(first) })
	e.edit("v2")
	e.awaitPause(1)
	second := e.get(t.Context()).Annotations["lockstep.dev/canary-revision"]
	e.argo("promote", "--full", name)
	e.await("the Rollout is Healthy too early", func(r *v1alpha1.Rollout) bool { return r.Status.Phase == v1alpha1.RolloutPhaseHealthy })
	e.Eventually("the second revision is told", func(ctx context.Context) error {
		if err := told(second); err != nil {
			return err
		}
		if err := e.Only(ctx, "v2"); err != nil {
			t.Errorf("told before the groups run it: %v", err)
		}
		return nil
	})
}
