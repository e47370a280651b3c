// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/kruise/install"
)

var (
	kruiseRollouts = schema.GroupVersionResource{Group: "rollouts.kruise.io", Version: "v1beta1", Resource: "rollouts"}
	rolloutTargets = schema.GroupVersionResource{Group: "lockstep.dev", Version: "v1alpha1", Resource: "rollouttargets"}
)

// kruiseScenes returns the scenes with Kruise Rollouts as the host.
func (s *stage) kruiseScenes() []scene {
	return []scene{
		{"A real control plane, with LeaderWorkerSet and Kruise Rollouts, its manager unmodified", s.raise},
		{"A LeaderWorkerSet: 4 groups of 2 pods, 1 GPU each", s.deploy},
		{"lockstep kruise, with the permissions of config/kruise only", s.control},
		{"A RolloutTarget, and a Rollout of Kruise that refers to it. From now on a template change moves no group by itself", s.target},
		{"A new model image, as from GitOps: it starts the Rollout", s.edit},
		{"The release: Kruise's Rollout, the target, and the groups, which are replaced in place", func(ctx context.Context) error {
			return s.follow(ctx, s.kruise())
		}},
		{"The result: every group at the new revision", s.result},
	}
}

// control starts the controller.
func (s *stage) control(ctx context.Context) error {
	log, err := s.start(ctx, deploy.KruiseServiceAccount, "kruise")
	if err == nil {
		fmt.Fprintf(s.out, "lockstep kruise, its log is %s\n", log)
	}
	return err
}

func (s *stage) target(ctx context.Context) error {
	pause, err := time.ParseDuration(s.script.pause)
	if err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	var steps []string // the script's batches
	for _, batch := range strings.Split(s.script.batches, ",") {
		steps = append(steps, fmt.Sprintf("{replicas: %s, pause: {duration: %d}}", batch, int(pause.Seconds())))
	}
	if err := s.cluster.Apply(ctx, s.namespace, install.Rollout(name, steps...)); err != nil {
		return err
	}
	for _, step := range steps {
		fmt.Fprintf(s.out, "      - %s\n", step)
	}
	host := s.kruise()
	return s.watch(ctx, host, host.idle)
}

func (s *stage) kruise() rollouts { return rollouts{kruiseRollouts, s.kruiseStatus, kruiseIdle} }

// kruiseIdle reports whether Kruise has observed the Rollout's generation and has nothing to do.
func kruiseIdle(r *unstructured.Unstructured) bool {
	observed, _, _ := unstructured.NestedInt64(r.Object, "status", "observedGeneration")
	return at(r, "status", "phase") == "Healthy" && observed == r.GetGeneration()
}

// kruiseStatus returns the status of Rollout and target.
func (s *stage) kruiseStatus(ctx context.Context, r *unstructured.Unstructured) (string, error) {
	client, err := dynamic.NewForConfig(s.cluster.RESTConfig())
	if err != nil {
		return "", fmt.Errorf("create client: %w", err)
	}
	t, err := client.Resource(rolloutTargets).Namespace(s.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get RolloutTarget: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Rollout        %s\n", at(r, "status", "phase"))
	if step := at(r, "status", "canaryStatus", "currentStepIndex"); step != "" && !kruiseIdle(r) {
		fmt.Fprintf(&b, "Step           %s, %s\n", step, at(r, "status", "canaryStatus", "currentStepState"))
	}
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprint(table, "\nRolloutTarget\n\nGROUPS\tREADY\tUPDATED\tUPDATED-READY\tPARTITION\tSTATE\n")
	fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", at(t, "spec", "replicas"), at(t, "status", "readyReplicas"), at(t, "status", "updatedReplicas"),
		at(t, "status", "updatedReadyReplicas"), at(t, "spec", "updateStrategy", "rollingUpdate", "partition"), at(t, "status", "state"))
	_ = table.Flush()
	return b.String(), nil
}

// at returns a field of an object as text, or "" without it.
func at(o *unstructured.Unstructured, path ...string) string { return text.Field(o, path...) }
