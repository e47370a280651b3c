// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package examples

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// The commands of the README release prefill and decode together.
//
// Proves: Example: prefill and decode as one DisaggregatedSet.
func TestDisaggregated(t *testing.T) {
	c := cluster.Shared(t)
	e := &env{Env: suite.NewEnv(t, c, "llm"), binary: binary(t), kubeconfig: c.Kubeconfig()}
	sets := e.Objects(disaggregated.GroupVersion.WithResource("disaggregatedsets"))
	ready := func(tag string) {
		await.Nil(t, "two groups of each role run "+tag, func(ctx context.Context) error {
			list, err := e.Sets().List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for i := range list.Items {
				w := &list.Items[i]
				if !strings.HasSuffix(w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image, ":"+tag) || w.Status.ReadyReplicas != 2 {
					return fmt.Errorf("%s has %d ready groups", w.Name, w.Status.ReadyReplicas)
				}
			}
			if len(list.Items) != 2 {
				return fmt.Errorf("there are %d children", len(list.Items))
			}
			return nil
		})
	}
	for line := range strings.Lines(e.block("disaggregated", "kubectl apply -f")) {
		switch command := strings.TrimSpace(line); {
		case strings.HasPrefix(command, "kubectl apply -k config/disaggregated"):
			suite.InstallRoles(t, c)
		case command == "kubectl apply -f examples/disaggregated/set.yaml":
			set := files.Read(t, source("disaggregated", "set.yaml"))
			suite.Apply(t, c, e.Namespace, string(set))
			ready("v0.19.0")
		case strings.HasPrefix(command, "kubectl edit disaggregatedset llm"):
			var ops []string
			for _, role := range []string{"0", "1"} {
				for _, template := range []string{"leader", "worker"} {
					ops = append(ops, `{"op":"replace","path":"/spec/roles/`+role+`/spec/leaderWorkerTemplate/`+template+
						`Template/spec/containers/0/image","value":"vllm/vllm-openai:v0.20.0"}`)
				}
			}
			patch := []byte("[" + strings.Join(ops, ",") + "]")
			_, err := sets.Patch(t.Context(), "llm", types.JSONPatchType, patch, metav1.PatchOptions{})
			require.NoError(t, err)
		case strings.HasPrefix(command, "lockstep "):
			e.run(strings.Replace(command, "lockstep ", e.binary+" --namespace "+e.Namespace+" ", 1))
		default:
			t.Fatalf("the test does not know %q", command)
		}
	}
	ready("v0.20.0")
	suite.DeleteObject(t, sets, "llm") // its GPUs are for the model servers
	await.Nil(t, "the groups are deleted", func(ctx context.Context) error {
		list, err := e.Sets().List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d children are left", len(list.Items))
		}
		return err
	})
}
