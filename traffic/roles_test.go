// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// roleSetup is that of a DisaggregatedSet whose prefill receives requests.
func roleSetup() Setup {
	set := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "serving", Name: "llm"}}
	set.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels = map[string]string{"app": "model", "tier": "model"} // LWS replaces the first
	return NewSetupOfRole(set, "prefill", "00000001", "00000002", Policy{StableService: "llm"})
}

// The sides of a DisaggregatedSet differ by the revision on their pods. A Service must select its entry role, and not by the name of a child.
func TestRolesAreIsolatedByRevision(t *testing.T) {
	t.Parallel()
	s := roleSetup()
	user := map[string]string{
		"disaggregatedset.x-k8s.io/name": "llm", "disaggregatedset.x-k8s.io/role": "prefill", "leaderworkerset.sigs.k8s.io/worker-index": "0",
	}
	svc := func(labels map[string]string) selector {
		return serviceSelector(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "llm"}, Spec: corev1.ServiceSpec{Selector: labels}})
	}
	assert.NoError(t, svc(user).check(s), "a Service of the entry role is refused")
	for _, wrong := range []map[string]string{
		{"disaggregatedset.x-k8s.io/role": "decode"}, {"leaderworkerset.sigs.k8s.io/name": "llm-00000001-prefill"}, {"disaggregatedset.x-k8s.io/name": "other"},
		{"app": "model"},
	} {
		labels := maps.Clone(user)
		maps.Copy(labels, wrong)
		assert.Error(t, svc(labels).check(s), "a Service with %v is accepted", wrong)
	}
	for _, tt := range []struct {
		d    Desired
		want string
	}{{prepared, "00000001"}, {Desired{HandedOver: true, Prepared: true}, "00000002"}} {
		labels, _, changed, err := svc(user).isolatedLabels(s, tt.d)
		assert.True(t, err == nil && changed && labels["disaggregatedset.x-k8s.io/revision"] == tt.want, "%+v: %v, %v", tt.d, labels, err)
		assert.True(t, svc(labels).ownIsolation(s), "%v is not the set's own isolation", labels)
	}
	assert.True(t, svc(map[string]string{"leaderworkerset.sigs.k8s.io/name": "llm"}).foreignIsolation(s),
		"the isolation of a LeaderWorkerSet with the set's name is the set's own")
}

// A DisaggregatedSet and a LeaderWorkerSet of one name do not own each other's objects.
func TestKindsOfOneName(t *testing.T) {
	t.Parallel()
	c := newFakePool(t, map[string]string{"llm-d.ai/role": "decode"}, false).withIngress()
	c.applyAll(prepared)
	c.ready()
	c.applyAll(Desired{Weight: 50})
	s, w := setupOf("vllm", c.setup.Policy.Routes...), c.world
	s.Policy, s.Owner.UID = c.setup.Policy, "same-name"
	s.Policy.StableService, s.Policy.Pool = "evil", nil
	w.Stable = readService(t, "service.yaml")
	w.Stable.Name = "evil"
	write, err := Next(s, Desired{}, w)
	assert.NoError(t, err)
	assert.Nil(t, write, "the LeaderWorkerSet's release writes %v", write)
	w.StableReady = []string{"vllm-0"}
	checkSays(t, "the name of the set's canary", Check(s, w), pb.ErrorReason_ERROR_REASON_NAME_TAKEN, []string{"Service default/vllm-canary"})
	c.world.Canary.OwnerReferences = nil
	write, err = Next(c.setup, Desired{Prepared: true}, c.world)
	require.NoError(t, err)
	assert.NotNil(t, write, "an object without an owner is kept")
}

var prepared = Desired{Prepared: true}

// Leaders of both sides are known by their names, with and without the number of a slice.
func TestRoleLeaders(t *testing.T) {
	t.Parallel()
	s := roleSetup()
	for pod, want := range map[string][3]bool{ // stable, canary, foreign
		"llm-00000001-prefill-0":   {true, false, false},
		"llm-0-00000001-prefill-3": {true, false, false},
		"llm-00000002-prefill-0":   {false, true, false},
		"llm-00000003-prefill-0":   {false, false, false},
		"llm-00000001-decode-0":    {false, false, true},
		"llm-0":                    {false, false, true},
	} {
		w := World{StableReady: []string{pod}}
		assert.Equal(t, want, [3]bool{w.leaderBehindStable(s.StablePin) != "", w.leaderBehindStable(s.CanaryPin) != "", w.foreignPod(s) != ""},
			"%s is stable, canary, foreign", pod)
	}
}

// newFakePool returns a set as in llm-d: its Service selects decode, and its pool by some labels.
func newFakePool(t *testing.T, selected map[string]string, workers bool) *fakeCluster {
	t.Helper()
	role := func(name string) (r disaggregated.DisaggregatedRoleSpec) {
		r.Name = name
		r.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels = map[string]string{"llm-d.ai/guide": "pd", "llm-d.ai/role": name}
		if workers {
			r.Spec.LeaderWorkerTemplate.Size = ptr.To[int32](2)
		}
		return r
	}
	c := newFakeCluster(t).withPool()
	set := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm"}, Spec: role("decode").Spec}
	c.setup = NewSetupOfRole(set, "decode", "00000001", "00000002", c.setup.Policy, role("prefill"), role("decode"))
	c.setup.CanaryPin["serving"] = "true"
	c.world.Stable.Spec.Selector = map[string]string{"disaggregatedset.x-k8s.io/role": "decode", "leaderworkerset.sigs.k8s.io/worker-index": "0"}
	c.world.StableReady = []string{"vllm-00000001-decode-0"}
	require.NoError(t, unstructured.SetNestedStringMap(c.world.StablePool.Object, selected, poolLabels...))
	return c
}

// An InferencePool that selects several roles keeps them in a release, on both sides: its endpoint picker chooses one of each, of one revision.
// One that selects a single role by any label keeps that.
func TestPoolKeepsRoles(t *testing.T) {
	t.Parallel()
	for name, user := range map[string]map[string]string{
		"all roles": {"llm-d.ai/guide": "pd"}, "by a label of the template": {"llm-d.ai/role": "decode"}, "by LWS's": {"disaggregatedset.x-k8s.io/role": "decode"},
	} {
		c := newFakePool(t, user, false)
		assert.NoError(t, Check(c.setup, c.world), name)
		before := c.world.StablePool
		c.applyAll(Desired{Prepared: true})
		side := func(revision string, more map[string]string) map[string]string {
			return labels.Merge(labels.Merge(user, more), map[string]string{"disaggregatedset.x-k8s.io/name": "vllm", "disaggregatedset.x-k8s.io/revision": revision})
		}
		assert.Empty(t, cmp.Diff(side("00000001", nil), poolSelector(c.world.StablePool).labels), "%s: the stable pool selects (-want +got)", name)
		canary := side("00000002", map[string]string{"serving": "true", "leaderworkerset.sigs.k8s.io/worker-index": "0"})
		assert.Empty(t, cmp.Diff(canary, poolSelector(c.world.CanaryPool).labels), "%s: the canary's pool selects (-want +got)", name)
		assert.Equal(t, "decode", c.world.Canary.Spec.Selector["disaggregatedset.x-k8s.io/role"], "%s: the canary's Service selects role", name)
		c.applyAll(Desired{HandedOver: true, Prepared: true})
		assert.Empty(t, cmp.Diff(side("00000002", nil), poolSelector(c.world.StablePool).labels),
			"%s: handed over, the pool selects (-want +got)", name)
		c.applyAll(Desired{})
		assert.Empty(t, diffJSON(usersOwn(before), usersOwn(c.world.StablePool)), "%s: the pool differs from the user's", name)
	}
}

// A Service can't choose among roles, and no role's workers get requests.
func TestCheckRoles(t *testing.T) {
	t.Parallel()
	const bad = pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE
	all := map[string]string{"llm-d.ai/guide": "pd"}
	c := newFakePool(t, all, false)
	c.world.Stable.Spec.Selector = all
	checkSays(t, "a Service of both roles", Check(c.setup, c.world), bad, []string{
		"Service vllm", "several roles of vllm", "disaggregatedset.x-k8s.io/role", "spec.selector", "decode or prefill", "InferencePool",
	})
	c = newFakePool(t, all, true)
	checkSays(t, "a pool of all workers", Check(c.setup, c.world), bad, []string{"InferencePool vllm", "workers", "worker-index"})
	c = newFakePool(t, labels.Merge(all, leaders), true)
	checkSays(t, "a pool of all leaders", Check(c.setup, c.world), 0, nil)
	c = newFakePool(t, all, true)
	c.setup.Worker = nil // decode is of single pods
	checkSays(t, "a pool of the workers of prefill", Check(c.setup, c.world), bad, []string{"InferencePool vllm", "workers"})
	c = newFakePool(t, map[string]string{"llm-d.ai/role": "prefill"}, false)
	checkSays(t, "a pool without the entry role", Check(c.setup, c.world), bad, []string{"InferencePool vllm selects no leader"})
}
