// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/gitops"
)

// Argo CD, Flux and `lockstep status --wait` call a template released once every group runs it, and at no moment before: neither while
// Argo, plugin and driver are stopped, nor while the release runs.
//
// Proves (test): GitOps and CI: a template that waits is healthy at no moment, with host and driver stopped.
func TestGitOpsHealth(t *testing.T) {
	e := newRelease(t, step("upgrade: 25%")+pause+step("promote: true"), slow())
	m := e.monitor()
	m.await(gitops.Healthy, "4 of 4 groups ready, 4 updated")

	owner := "argo-rollouts/" + e.Namespace + "/" + name
	require.NoError(t, e.Cluster.StopComponent(t.Context(), cluster.Argo))
	e.edit("v2")
	released := e.startWait("--wait")
	m.await(gitops.Suspended, "0 updated; the template is held and waits for a release by "+owner)
	e.mustFail(exit.Error, "is held and waits for a release by "+owner, "--wait=3s")

	require.NoError(t, e.Cluster.StartComponent(t.Context(), cluster.Argo))
	e.awaitPause(1)
	m.await(gitops.Suspended, "by "+owner+" is in flight (Progressing)")
	e.mustFail(exit.Error, "by "+owner+" is ready", "--wait=3s")
	e.argo("promote", name)
	code, text := released()
	assert.Equal(t, exit.OK, code, "the wait ended with %d:\n%s", code, text)
	assert.NoError(t, e.Only(t.Context(), "v2"), "the wait ended early")
	m.await(gitops.Healthy, "4 of 4 groups ready, 4 updated")
	e.awaitRest("v2")

	e.edit("v3")
	e.awaitPause(1)
	e.argo("abort", name)
	e.awaitAborted("v2")
	m.await(gitops.Suspended, "0 updated; the template is held and waits for a release by "+owner)
	e.mustFail(exit.RolledBack, "by "+owner+" was rolled back", "--wait")

	e.edit("v2")
	code, text = e.startWait("--wait")()
	assert.Equal(t, exit.OK, code, "after the revert, the wait ended with %d:\n%s", code, text)
	m.await(gitops.Healthy, "4 of 4 groups ready, 4 updated")
	e.awaitRest("v2")
}

// monitor judges every state of the workload that a watch shows, until the test ends.
type monitor struct {
	*env

	argo, flux gitops.Judge
	mu         sync.Mutex
	// health and message are those of the latest state.
	health, message string
}

func (e *env) monitor() *monitor {
	e.T.Helper()
	m := &monitor{env: e}
	var err, errFlux error
	m.argo, err = gitops.ArgoCD("../../config/argo/argo-cd/argocd-cm.yaml")
	m.flux, errFlux = gitops.Flux("../../examples/gitops/flux.yaml")
	err = errors.Join(err, errFlux)
	require.NoError(e.T, err)
	client := e.Objects(lws.GroupVersion.WithResource("leaderworkersets"))
	events, err := client.Watch(e.T.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + e.Name})
	require.NoError(e.T, err)
	var done sync.WaitGroup
	e.T.Cleanup(func() { events.Stop(); done.Wait() })
	done.Go(func() {
		for event := range events.ResultChan() {
			if object, ok := event.Object.(*unstructured.Unstructured); ok {
				m.judge(object)
			}
		}
		assert.Error(e.T, e.T.Context().Err(), "the watch of the workload ended before the test")
	})
	return m
}

// judge reports a state that is called healthy although a group does not run its template, or isn't ready.
func (m *monitor) judge(object *unstructured.Unstructured) {
	health, message, err := m.argo(object.Object)
	flux, _, errFlux := m.flux(object.Object)
	if err = errors.Join(err, errFlux); err != nil {
		m.T.Errorf("generation %d: %v", object.GetGeneration(), err)
	}
	m.mu.Lock()
	if health+message != m.health+m.message {
		m.T.Logf("generation %d: Argo CD: %s: %s; Flux: %s", object.GetGeneration(), health, message, flux)
	}
	m.health, m.message = health, message
	m.mu.Unlock()
	if (health == gitops.Healthy) != (flux == gitops.Healthy) {
		m.T.Errorf("generation %d: Argo CD: %s: %s; Flux: %s", object.GetGeneration(), health, message, flux)
	}
	if health != gitops.Healthy && flux != gitops.Healthy {
		return
	}
	containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "leaderWorkerTemplate", "workerTemplate", "spec", "containers")
	_, tag, _ := strings.Cut(fmt.Sprint(containers[0].(map[string]any)["image"]), ":")
	ctx := context.WithoutCancel(m.T.Context())
	if at, _, err := m.counts(ctx, tag); err != nil || at != groups {
		m.T.Errorf("generation %d is called healthy (Argo CD: %s, Flux: %s): %d of %d groups are ready at %s, %v",
			object.GetGeneration(), health, flux, at, groups, tag, err)
	}
}

// await waits for the latest state to have this health, and a message with these words.
func (m *monitor) await(health, words string) {
	m.T.Helper()
	m.Eventually(health+": "+words, func(context.Context) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.health != health || !strings.Contains(m.message, words) {
			return fmt.Errorf("it is %s: %s", m.health, m.message)
		}
		return nil
	})
}

// startWait starts `lockstep status --wait`. The function that it returns waits for its end.
func (e *env) startWait(flag string) func() (code int, text string) {
	e.T.Helper()
	binary := driver.Path(e.T)
	var text bytes.Buffer
	command := exec.CommandContext(e.T.Context(), binary, "status", e.Name, flag, "--namespace", e.Namespace, "--kubeconfig", e.Cluster.Kubeconfig())
	command.Stdout, command.Stderr = &text, &text
	require.NoError(e.T, command.Start())
	return func() (int, string) {
		_ = command.Wait()
		return command.ProcessState.ExitCode(), text.String()
	}
}

// mustFail runs `lockstep status --wait`, and checks its exit code and the text of its error.
func (e *env) mustFail(code int, words, flag string) {
	e.T.Helper()
	if got, text := e.startWait(flag)(); got != code || !strings.Contains(text, words) {
		e.T.Errorf("lockstep status %s: exit code %d, want %d and %q:\n%s", flag, got, code, words, text)
	}
}
