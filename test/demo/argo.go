// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-rollouts/lockstep/test/argo/install"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// rollout is the Rollout of the demo. Its steps are the script's batches.
const rollout = `
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: %[1]s}
spec:
  replicas: 0
  progressDeadlineSeconds: 2147483647
  selector: {matchLabels: {rollout: %[1]s}}
  template:
    metadata: {labels: {rollout: %[1]s}}
    spec: {containers: [{name: none, image: registry.example/none}]}
  strategy:
    canary:
      trafficRouting:
        plugins:
          lockstep/lws: {workload: %[1]s}
      steps:
%[2]s      - plugin: {name: lockstep/lws, config: {promote: true}}
`

// argoScenes returns the scenes with Argo Rollouts as the host.
func (s *stage) argoScenes() []scene {
	return []scene{
		{"A real control plane, with LeaderWorkerSet and Argo Rollouts. Lockstep is its plugin, with the permissions of config/argo", s.raise},
		{"A LeaderWorkerSet: 4 groups of 2 pods, 1 GPU each", s.deploy},
		{"A Rollout with 0 replicas, which names it. From now on a template change moves no group by itself", s.compose},
		{"A new model image, as from GitOps: it starts the Rollout", s.edit},
		{"The release: kubectl argo rollouts get rollout " + name + ", and the groups", func(ctx context.Context) error { return s.follow(ctx, s.argo()) }},
		{"The result: every group at the new revision, no canary", s.result},
	}
}

// plugin installs Lockstep in Argo.
func (s *stage) plugin(ctx context.Context, c *cluster.Cluster) error {
	return install.Plugin(ctx, c, s.script.lockstep)
}

func (s *stage) compose(ctx context.Context) error {
	var steps strings.Builder
	for batch := range strings.SplitSeq(s.script.batches, ",") {
		fmt.Fprintf(&steps, "      - plugin: {name: lockstep/lws, config: {upgrade: %s}}\n      - pause: {duration: %s}\n", batch, s.script.pause)
	}
	if err := s.cluster.Apply(ctx, s.namespace, fmt.Appendf(nil, rollout, name, steps.String())); err != nil {
		return err
	}
	fmt.Fprint(s.out, steps.String())
	return s.watch(ctx, s.argo(), healthy)
}

// healthy reports whether Argo has observed the Rollout's generation and is idle.
func healthy(r *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(r.Object, "status", "phase")
	observed, _, _ := unstructured.NestedString(r.Object, "status", "observedGeneration")
	return phase == "Healthy" && observed == fmt.Sprint(r.GetGeneration())
}

var rolloutResource = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "rollouts"}

func (s *stage) argo() rollouts { return rollouts{rolloutResource, s.argoStatus, healthy} }

// argoStatus returns the output of Argo's kubectl plugin.
func (s *stage) argoStatus(ctx context.Context, _ *unstructured.Unstructured) (string, error) {
	kubectl, err := cluster.KubectlArgo(ctx)
	if err != nil {
		return "", err
	}
	get := exec.CommandContext(ctx, kubectl, "get", "rollout", name, "--no-color", "--namespace", s.namespace, "--kubeconfig", s.cluster.Kubeconfig())
	text, err := get.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl argo rollouts get rollout: %w: %s", err, text)
	}
	return string(text), nil
}
