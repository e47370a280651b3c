// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/modelservers"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// Proves: Kruise: targets that are deleted or come later; scaling; the examples.
func TestExampleWithTraffic(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.example("workload.yaml", "kruise/service.yaml", "kruise/rollouttarget.yaml", "kruise/rollout-traffic.yaml")
	e.awaitPhase("Healthy")
	e.MustRest("v1")
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
	e.mustRoute("vllm-leader 80, vllm-leader-canary 20")
}

// example applies files of examples/.
func (e *env) example(paths ...string) {
	e.T.Helper()
	for _, path := range paths {
		manifest := files.Read(e.T, filepath.Join("..", "..", "examples", path))
		e.Apply(string(manifest))
	}
}

// mustOwn checks that a field manager owns the route's rules and the Service's selector, as examples/gitops tells Argo CD.
func (e *env) mustOwn(manager, server string) {
	e.T.Helper()
	for name, field := range map[string]string{server: `"f:rules"`, server + "-leader": `"f:selector"`} {
		resource := httpRoutes
		if name != server {
			resource = corev1.SchemeGroupVersion.WithResource("services")
		}
		object := suite.GetObject(e.T.Context(), e.T, e.Objects(resource), name)
		if !slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
			return entry.Manager == manager && strings.Contains(entry.FieldsV1.String(), field)
		}) {
			e.T.Errorf("%s does not own %s of %s: %v", manager, field, name, object.GetManagedFields())
		}
	}
}

// The examples of model servers with Kruise: in place, and the second group after an approval. One server after the other, because the
// nodes have GPUs for one release.
//
// Proves: Examples of model servers, each: without a host, with Argo, with Kruise.
func TestModelServers(t *testing.T) {
	t.Parallel()
	modelservers.InstallCRDs(t, cluster.Shared(t))
	for _, server := range modelservers.Names() {
		t.Run(server, func(t *testing.T) {
			e := newEnv(t)
			e.Name = server
			e.Apply(modelservers.Manifest(t, "../../examples", server, "kruise", e.Namespace))
			e.awaitPhase("Healthy")
			e.Edit("v1") // another image than the example's: the first release
			e.awaitPause(1)
			e.mustRoute(server + "-leader 50, " + server + "-leader-canary 50")
			e.mustOwn("kruise-rollout", server)
			e.approve()
			e.awaitDone()
			e.MustRest("v1")
			suite.DeleteWorkload(t, e.Cluster, e.Namespace, server)
		})
	}
}

// A Rollout of a target releases prefill and decode together, beside the old groups: the first template again rolls back and touches no
// stable group, and the next template is promoted, scaled up in mid-release.
//
// Proves: Hosts release a DisaggregatedSet: to the end, and back.
func TestDisaggregated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sets := schema.GroupVersionResource{Group: "disaggregatedset.x-k8s.io", Version: "v1", Resource: "disaggregatedsets"}
	s := suite.NewRoles(t, e.Cluster, e.Namespace, name)
	assert.Error(t, e.Cluster.Apply(t.Context(), e.Namespace, []byte(strings.Replace(target("other"), "workloadRef: {", "workloadRef: {kind: Deployment, ", 1))),
		"a target of a Deployment is accepted")
	e.Apply(strings.Replace(target(name), "workloadRef: {", "workloadRef: {kind: DisaggregatedSet, ", 1))
	e.Apply(rollout(quarters))
	e.awaitPhase("Healthy")
	e.awaitReady(name, metav1.ConditionTrue, "Held")
	stable := s.Leaders("v1")

	s.SetImage("v2")
	e.awaitPause(1)
	s.Await("v2", 1, 1)
	s.Await("v1", 4, 2)
	s.SetImage("v1")
	e.awaitDone()
	s.Await("v2", -1, -1)
	now := s.Leaders("v1")
	assert.True(t, maps.Equal(now, stable), "the leaders of the stable revision were %v and are %v", stable, now)

	s.SetImage("v3")
	s.Await("v3", 1, 1) // until then the Rollout shows the pause of the release before
	e.awaitPause(1)
	// Kruise leaves its partition as it is, with which 5 of 8 units could be updated. The step asks for a quarter.
	_, err := e.Objects(sets).Patch(t.Context(), name, types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/roles/0/spec/replicas","value":8}]`), metav1.PatchOptions{})
	require.NoError(t, err)
	s.Await("v1", 8, 2)
	s.Await("v3", 2, 1)
	e.approve()
	e.awaitPause(2)
	s.Await("v3", 4, 1)
	s.Await("v1", 8, 2)
	e.approve()
	e.awaitDone()
	s.Await("v1", -1, -1)
	s.Await("v3", 8, 2)
	e.awaitReady(name, metav1.ConditionTrue, "Promoted")
	got := e.target(t.Context(), name).Status
	assert.True(t, got.UpdatedReadyReplicas == 8 && got.CurrentRevision == got.UpdateRevision, "the target's status is %s", asJSON(got))
}
