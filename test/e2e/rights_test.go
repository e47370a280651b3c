// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

// notRequested has the rights of docs/security.md that the courses of TestRightsInAuditLog don't use, with the reason.
var notRequested = map[string]string{
	"patch services":                    "the Service here selects this workload's leaders only: suite traffic",
	"patch ingresses.networking.k8s.io": "a weight that changes: TestShareFollowsCapacity",
	"update leaderworkersets/finalizers.leaderworkerset.x-k8s.io": "an admission plugin asks for it when the canary is created",
	"get controllerrevisions.apps":                                "an undo: TestHistoryUndo",
	"delete pods":                                                 "a group that is off the stable revision after a rollback",
	"list scaledobjects.keda.sh":                                  keda,
	"watch scaledobjects.keda.sh":                                 keda,
	"patch scaledobjects.keda.sh":                                 keda,

	"list leaderworkersets.leaderworkerset.x-k8s.io": streams,
	"list pods":                                 streams,
	"list controllerrevisions.apps":             streams,
	"list services":                             streams,
	"list resourcequotas":                       streams,
	"list poddisruptionbudgets.policy":          streams,
	"list endpointslices.discovery.k8s.io":      streams,
	"list ingresses.networking.k8s.io":          streams,
	"list horizontalpodautoscalers.autoscaling": streams,
}

// Reasons of notRequested.
const (
	keda    = "KEDA is not installed"
	streams = "a watch sends the initial list, unless the API server is older or does not stream it"
)

// optional are the roles that these courses don't need: requests of them are claimed, but need not occur.
var optional = map[string]string{
	"lockstep-driver-disaggregated": "suite disaggregated",
	"lockstep-driver-gateway":       "suite traffic",
	"lockstep-driver-pools":         "suite traffic",
	"lockstep-preflight":            "TestPreflight, with an account of its own",
	"lockstep-lease":                "TestLeaderElection, with an account of its own",
	"system:auth-delegator":         "only a server on TCP asks",
	"system:basic-user":             "granted by Kubernetes",
}

// The driver sends no request that docs/security.md does not claim, and uses each right there. The courses are in one namespace, and
// the log has the requests of all drivers of the suite.
//
// Proves: Security: requests are those of docs/security.md, each right is used; the pods are restricted.
func TestRightsInAuditLog(t *testing.T) {
	t.Parallel()
	rightsCourses(t)
	checkRights(t, newEnv(t), func(role string, right audit.Right) bool {
		return optional[role] == "" && notRequested[right.String()] == ""
	})
}

// checkRights compares the requests of all drivers in the log with docs/security.md: it claims each, and each right there that is due was used.
func checkRights(t *testing.T, e *env, due func(role string, right audit.Right) bool) {
	t.Helper()
	claims, err := audit.Claims("../../docs/security.md")
	require.NoError(t, err)
	claimed, used := map[audit.Right]bool{}, map[audit.Right]bool{}
	for _, rights := range claims {
		maps.Copy(claimed, rights)
	}
	for _, request := range audit.Between(t, e.cluster.AuditLog(), "", audit.Mark(t, e.kube, e.namespace), driver.User) {
		right, ok := request.Right()
		if !ok || request.User.Username != driver.User {
			continue
		}
		if used[right] = true; !claimed[right] {
			t.Errorf("the driver requested %s, answer %d, which docs/security.md does not claim", right, request.ResponseStatus.Code)
		}
	}
	for role, rights := range claims {
		for right := range rights {
			assert.False(t, !used[right] && due(role, right), "%s has the right to %s, which no course used", role, right)
		}
	}
	t.Logf("%d rights used: %v", len(used), slices.SortedFunc(maps.Keys(used), func(a, b audit.Right) int {
		return strings.Compare(a.Resource+a.Verb, b.Resource+b.Verb)
	}))
}

// TestRightsInAuditLog for the role of DisaggregatedSets: an adoption, the end of bounds that outlive their set, and a scaler use its rights.
//
// Proves: Security: requests are those of docs/security.md, each right is used; the pods are restricted.
func TestDisaggregatedRights(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 1, 1)
	scaled := s.hasScalers()
	if scaled { // LWS v0.10.0
		s.scaleExternally(0)
	}
	s.adopt()
	s.setImage("v2")
	s.begin("r1", pb.Style_STYLE_CANARY, "100%")
	s.upgrade("r1", 0)
	s.finalize("r1", promote)
	s.disown(s.ref())
	s.awaitNoBounds()
	checkRights(t, s.env, func(role string, right audit.Right) bool {
		needsScaler := strings.HasPrefix(right.Resource, scalersResource.Resource)
		return role == "lockstep-driver-disaggregated" && notRequestedOfSets[right.String()] == "" && (scaled || !needsScaler)
	})
}

// notRequestedOfSets has the rights to DisaggregatedSets that TestDisaggregatedRights doesn't use, with the reason.
var notRequestedOfSets = map[string]string{
	"update disaggregatedsets/finalizers.disaggregatedset.x-k8s.io": "an admission plugin asks for it when the bounds are created",

	"list disaggregatedsets.disaggregatedset.x-k8s.io":                    streams,
	"list disaggregatedsetrolescalers.disaggregatedset.x-k8s.io":          streams,
	"list replicabounds.lockstep.dev":                                     streams,
	"list validatingadmissionpolicies.admissionregistration.k8s.io":       streams,
	"list validatingadmissionpolicybindings.admissionregistration.k8s.io": streams,
}

// rightsCourses runs releases that need every right but those in notRequested and optional.
func rightsCourses(t *testing.T) {
	t.Helper()
	t.Run("history beyond its limit", func(t *testing.T) {
		w := newEnv(t).adopt(model("model", 1, 1))
		w.annotate(limitAnnotation, "2")
		for _, tag := range []string{"v2", "v3"} {
			w.edit(image(tag))
			w.release(tag, policy("100%"))
		}
		w.eventually("the oldest template is deleted", func(ctx context.Context) error { return w.counts(ctx, snapshotSelector, 2) })
	})
	t.Run("a workload that does not exist", func(t *testing.T) {
		e := newEnv(t)
		_, err := e.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: e.namespace, Name: "none"}})
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND)
	})
	t.Run("canary with traffic and batch labels", func(t *testing.T) {
		w := newEnv(t).adopt(model("model", 4, 2))
		w.expose()
		w.edit(image("v2"))
		p := w.withTraffic(policy("50%", "100%"))
		p.RolloutId = "r1"
		w.initialize("r1", p)
		w.upgrade("r1", 0)
		w.setWeight(50)
		w.finalize("r1", rollback)
		w.mustBeIdle()
	})
	t.Run("blue-green under an autoscaler", func(t *testing.T) {
		w := autoscaled(t).adopt(model("model", 2, 1))
		w.autoscale(1, 4, nil)
		w.edit(image("v2"))
		w.initialize("r1", blueGreen())
		w.upgrade("r1", 0)
		w.finalize("r1", rollback)
		w.mustBeIdle()
	})
	t.Run("partition, rolled back from the last batch", func(t *testing.T) {
		w := newEnv(t).adopt(model("model", 2, 2))
		w.edit(image("v2"))
		p := policy("50%", "100%")
		p.Style = pb.Style_STYLE_PARTITION
		w.initialize("r1", p)
		w.upgrade("r1", 0)
		w.upgrade("r1", 1)
		w.finalize("r1", rollback)
		w.mustBeIdle()
	})
}

// The API server accepts the pods of the shipped Deployments in Lockstep's namespace, which enforces the Pod Security level
// restricted, and mounts no other token than theirs.
//
// Proves: Security: requests are those of docs/security.md, each right is used; the pods are restricted.
func TestDeploymentsAreRestricted(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	driver.Kubeconfig(t, e.cluster) // applies config/base
	for _, read := range []func() ([]byte, error){deploy.Kruise, deploy.BatchRelease} {
		manifest, err := read()
		require.NoError(t, err)
		require.NoError(t, e.cluster.Apply(t.Context(), config.Namespace, manifest))
	}
	for _, name := range []string{"deployment", "kruise", "kruise/batchrelease"} {
		raw := files.Read(t, filepath.Join("..", "..", "config", name, "deployment.yaml"))
		var deployment appsv1.Deployment
		require.NoError(t, yaml.UnmarshalStrict(raw, &deployment))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "restricted"}, Spec: deployment.Spec.Template.Spec}
		create := func() (*corev1.Pod, error) {
			return e.kube.CoreV1().Pods(config.Namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		}
		created, err := create()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		assert.Len(t, created.Spec.Volumes, len(pod.Spec.Volumes),
			"%s: the API server added a volume to %d: %v", name, len(pod.Spec.Volumes), created.Spec.Volumes)
		pod.Spec.SecurityContext.SeccompProfile = nil
		if _, err := create(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "seccompProfile") {
			t.Errorf("%s without a seccomp profile: %v", name, err)
		}
	}
}

// A driver that has its permissions in one namespace adopts no DisaggregatedSet until it may read admission policies in the cluster, and says
// so.
//
// Proves: Security: requests are those of docs/security.md, each right is used; the pods are restricted.
func TestDisaggregatedNamespaced(t *testing.T) {
	t.Parallel()
	roles, err := config.DriverRules()
	require.NoError(t, err)
	var rules []rbacv1.PolicyRule
	for _, part := range roles {
		rules = slices.Concat(rules, part)
	}
	s := newRoleSetOf(t, 2, 1, func(e *env) *driver.Driver {
		tenant.Account(t, e.cluster, e.namespace, config.ServiceAccount, map[string][]rbacv1.PolicyRule{e.namespace: rules})
		kubeconfig, err := driver.AccountKubeconfig(e.cluster, e.namespace, config.ServiceAccount)
		require.NoError(t, err)
		return driver.Start(t, kubeconfig, e.namespace)
	})
	adopt := func() error {
		_, err := s.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: s.ref()})
		return err
	}
	await.True(t, "the adoption is refused", func() bool { return adopt() != nil })
	mustFail(t, adopt(), pb.ErrorReason_ERROR_REASON_FORBIDDEN)
	require.ErrorContains(t, adopt(), "config/namespaced")

	manifest, err := deploy.NamespacedBounds()
	require.NoError(t, err)
	suite.Apply(t, s.cluster, "", string(bytes.ReplaceAll(manifest, []byte("namespace: "+config.Namespace), []byte("namespace: "+s.namespace))))
	s.adopt()
	s.awaitState(pb.State_STATE_HOLDING, "Held")
}
