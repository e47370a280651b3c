// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/test/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// WithRoles installs the kind of the bounds of DisaggregatedSets, and the policies that enforce them.
func WithRoles() cluster.Option {
	manifest, err := config.Disaggregated()
	if err != nil {
		panic(err)
	}
	return cluster.WithManifest(manifest)
}

// Roles is a DisaggregatedSet under test: prefill has 4 groups of 2 pods, and decode has 2.
type Roles struct {
	T         testing.TB
	Cluster   *cluster.Cluster
	Namespace string
	Name      string
}

// NewRoles creates a set with the image v1, and returns once its groups are ready.
func NewRoles(t testing.TB, c *cluster.Cluster, namespace, name string) *Roles {
	t.Helper()
	r := &Roles{T: t, Cluster: c, Namespace: namespace, Name: name}
	role := func(name string, groups int) string {
		return fmt.Sprintf(`
  - name: %s
    spec:
      replicas: %d
      rolloutStrategy: {type: RollingUpdate, rollingUpdateConfiguration: {maxSurge: 1, maxUnavailable: 0}}
      leaderWorkerTemplate:
        size: 2
        workerTemplate:
          spec: {terminationGracePeriodSeconds: 1, containers: [{name: server, image: "example.com/vllm:v1"}]}`, name, groups)
	}
	Apply(t, c, namespace, "apiVersion: disaggregatedset.x-k8s.io/v1\nkind: DisaggregatedSet\nmetadata: {name: "+name+"}\nspec:\n  roles:"+
		role("prefill", 4)+role("decode", 2))
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
	if _, err := sets.Patch(r.T.Context(), r.Name, types.JSONPatchType, []byte("["+strings.Join(ops, ",")+"]"), metav1.PatchOptions{}); err != nil {
		r.T.Fatal(err)
	}
}

// Await waits until the children with a tag have exactly these groups, all ready. -1 waits until there is no child.
func (r *Roles) Await(tag string, prefill, decode int32) {
	r.T.Helper()
	await.Nil(r.T, fmt.Sprintf("%d groups of prefill and %d of decode at %s", prefill, decode, tag), func(ctx context.Context) error {
		return r.check(ctx, tag, map[string]int32{"prefill": prefill, "decode": decode})
	})
}

func (r *Roles) check(ctx context.Context, tag string, want map[string]int32) error {
	_, client, _ := Clients(r.Cluster)
	list, err := client.LeaderworkersetV1().LeaderWorkerSets(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: disaggregated.SetNameLabelKey + "=" + r.Name})
	if err != nil {
		return err
	}
	have := map[string]string{}
	for i := range list.Items {
		w := &list.Items[i]
		if strings.HasSuffix(w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image, ":"+tag) {
			have[w.Labels[disaggregated.RoleLabelKey]] = fmt.Sprintf("%d groups, %d of %d ready", ptr.Deref(w.Spec.Replicas, 1), w.Status.ReadyReplicas, w.Status.Replicas)
		}
	}
	for role, groups := range want {
		ask := ""
		if groups >= 0 {
			ask = fmt.Sprintf("%d groups, %[1]d of %[1]d ready", groups)
		}
		if have[role] != ask {
			return fmt.Errorf("children at %s have %v", tag, have)
		}
	}
	return nil
}

// Leaders returns the UIDs of the leader pods at a tag, by name.
func (r *Roles) Leaders(tag string) map[string]types.UID {
	r.T.Helper()
	kube, _, _ := Clients(r.Cluster)
	pods, err := kube.CoreV1().Pods(r.Namespace).List(r.T.Context(), metav1.ListOptions{
		LabelSelector: lws.WorkerIndexLabelKey + "=0," + disaggregated.SetNameLabelKey + "=" + r.Name,
	})
	if err != nil {
		r.T.Fatal(err)
	}
	found := map[string]types.UID{}
	for i := range pods.Items {
		if strings.HasSuffix(pods.Items[i].Spec.Containers[0].Image, ":"+tag) {
			found[pods.Items[i].Name] = pods.Items[i].UID
		}
	}
	return found
}
