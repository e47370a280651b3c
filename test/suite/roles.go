// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
)

// WithRoles installs the kind of the bounds of DisaggregatedSets, and the policies that enforce them.
func WithRoles() cluster.Option { return cluster.WithManifest(deploy.Disaggregated) }

// InstallRoles installs the same on a cluster that runs already.
func InstallRoles(t testing.TB, c *cluster.Cluster) {
	t.Helper()
	require.NoError(t, c.ApplyConfig(t.Context(), "", deploy.Disaggregated))
}

// RolesManifest is a DisaggregatedSet whose roles have groups of 2 pods. pod returns a role's template of pods.
func RolesManifest(name string, prefill, decode int32, pod func(role string) string) string {
	manifest := "apiVersion: disaggregatedset.x-k8s.io/v1\nkind: DisaggregatedSet\nmetadata: {name: " + name + "}\nspec:\n  roles:"
	for _, role := range []struct {
		name   string
		groups int32
	}{{"prefill", prefill}, {"decode", decode}} {
		manifest += fmt.Sprintf(`
  - name: %s
    spec:
      replicas: %d
      rolloutStrategy: {type: RollingUpdate, rollingUpdateConfiguration: {maxSurge: 1, maxUnavailable: 0}}
      leaderWorkerTemplate:
        size: 2
        workerTemplate: %s`, role.name, role.groups, pod(role.name))
	}
	return manifest + "\n"
}

// Roles is a DisaggregatedSet under test, with the roles prefill and decode.
type Roles struct {
	T         testing.TB
	Cluster   *cluster.Cluster
	Namespace string
	Name      string
}

// NewRoles creates the set of RolesManifest with the image v1, and returns once its groups are ready.
func NewRoles(t testing.TB, c *cluster.Cluster, namespace, name string) *Roles {
	t.Helper()
	r := &Roles{T: t, Cluster: c, Namespace: namespace, Name: name}
	Apply(t, c, namespace, RolesManifest(name, 4, 2, func(string) string {
		return `{spec: {terminationGracePeriodSeconds: 1, containers: [{name: server, image: "example.com/vllm:v1"}]}}`
	}))
	r.Await("v1", 4, 2)
	return r
}

// SetImage gives both roles a template with a tag, in one write.
func (r *Roles) SetImage(tag string) {
	r.T.Helper()
	ops := make([]string, 2)
	for i := range ops {
		ops[i] = fmt.Sprintf(`{"op":"replace","path":"/spec/roles/%d/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":"example.com/vllm:%s"}`, i, tag)
	}
	_, _, client := Clients(r.Cluster)
	sets := client.Resource(disaggregated.GroupVersion.WithResource("disaggregatedsets")).Namespace(r.Namespace)
	_, err := sets.Patch(r.T.Context(), r.Name, types.JSONPatchType, []byte("["+strings.Join(ops, ",")+"]"), metav1.PatchOptions{})
	require.NoError(r.T, err)
}

// Await waits for Check.
func (r *Roles) Await(tag string, prefill, decode int32) {
	r.T.Helper()
	await.Nil(r.T, fmt.Sprintf("%d groups of prefill and %d of decode at %s", prefill, decode, tag), func(ctx context.Context) error {
		return r.Check(ctx, tag, prefill, decode)
	})
}

// Check returns an error unless the children with a tag have exactly these groups, all ready. -1: there is no child.
func (r *Roles) Check(ctx context.Context, tag string, prefill, decode int32) error {
	found, err := r.Children(ctx, tag)
	if err != nil {
		return err
	}
	for role, want := range map[string]int32{"prefill": prefill, "decode": decode} {
		w := found[role]
		switch {
		case want < 0 && w == nil:
		case want < 0:
			return fmt.Errorf("%s still exists", w.Name)
		case w == nil:
			return fmt.Errorf("there is no child of role %s at %s", role, tag)
		default:
			if err := HasGroups(w, want); err != nil {
				return err
			}
		}
	}
	return nil
}

// HasGroups returns an error unless a LeaderWorkerSet has exactly this many groups, all ready.
func HasGroups(w *lws.LeaderWorkerSet, want int32) error {
	if w.Status.ObservedGeneration != w.Generation {
		return fmt.Errorf("the status of %s is of generation %d, want %d", w.Name, w.Status.ObservedGeneration, w.Generation)
	}
	if n := ptr.Deref(w.Spec.Replicas, 1); n != want || w.Status.ReadyReplicas != want || w.Status.Replicas != want {
		return fmt.Errorf("%s has %d groups in its spec and %d of %d ready, want %d", w.Name, n, w.Status.ReadyReplicas, w.Status.Replicas, want)
	}
	return nil
}

// Children returns the children with a tag, by role. The set has one slice.
func (r *Roles) Children(ctx context.Context, tag string) (map[string]*lws.LeaderWorkerSet, error) {
	return r.children(ctx, tag, func(labels map[string]string) string { return labels[disaggregated.RoleLabelKey] })
}

// Members returns the children with a tag by slice and role, such as 0-prefill. LWS v0.9.0 has no slices.
func (r *Roles) Members(ctx context.Context, tag string) (map[string]*lws.LeaderWorkerSet, error) {
	return r.children(ctx, tag, func(labels map[string]string) string {
		return labels["disaggregatedset.x-k8s.io/slice"] + "-" + labels[disaggregated.RoleLabelKey]
	})
}

func (r *Roles) children(ctx context.Context, tag string, key func(labels map[string]string) string) (map[string]*lws.LeaderWorkerSet, error) {
	_, client, _ := Clients(r.Cluster)
	list, err := client.LeaderworkersetV1().LeaderWorkerSets(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: disaggregated.SetNameLabelKey + "=" + r.Name})
	if err != nil {
		return nil, err
	}
	found := map[string]*lws.LeaderWorkerSet{}
	for i := range list.Items {
		w := &list.Items[i]
		if strings.HasSuffix(w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image, ":"+tag) {
			found[key(w.Labels)] = w
		}
	}
	return found, nil
}

// Leaders returns the UIDs of the leader pods at a tag, by name.
func (r *Roles) Leaders(tag string) map[string]types.UID {
	r.T.Helper()
	kube, _, _ := Clients(r.Cluster)
	pods, err := kube.CoreV1().Pods(r.Namespace).List(r.T.Context(), metav1.ListOptions{
		LabelSelector: lws.WorkerIndexLabelKey + "=0," + disaggregated.SetNameLabelKey + "=" + r.Name,
	})
	require.NoError(r.T, err)
	found := map[string]types.UID{}
	for i := range pods.Items {
		if strings.HasSuffix(pods.Items[i].Spec.Containers[0].Image, ":"+tag) {
			found[pods.Items[i].Name] = pods.Items[i].UID
		}
	}
	return found
}
