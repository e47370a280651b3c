// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	"github.com/lockstep-rollouts/lockstep/test/deploy"
)

//go:embed disaggregated.yaml
var roleSet []byte

// setName is the set of disaggregated.yaml, as commands take it.
const setName = "disaggregatedset/llm"

// setScenes are the steps of the demo with a DisaggregatedSet.
func (s *stage) setScenes() []scene {
	return []scene{
		{"A real control plane: etcd, API server, controllers, LeaderWorkerSet, and nodes without containers (KWOK)", s.raise},
		{"A DisaggregatedSet: prefill has 4 groups of 2 pods, decode has 2", s.deploySet},
		{"The policies that bound its children, and the Lockstep driver", s.serveSet},
		{"Adopt: from now on a template change moves no group by itself", func(ctx context.Context) error { return s.lockstep(ctx, "adopt", setName) }},
		{"A new model image for both roles. No group moves", s.editSet},
		{"The release: batch by batch, prefill and decode together", func(ctx context.Context) error {
			return s.lockstep(ctx, s.releaseArgs(setName)...)
		}},
		{"The result: every group of both roles at the new revision", s.summarySet},
	}
}

func (s *stage) deploySet(ctx context.Context) error {
	if err := s.cluster.Apply(ctx, s.namespace, roleSet); err != nil {
		return err
	}
	return s.awaitChildren(ctx, "all groups are ready", oldModel, 4, 2)
}

// awaitChildren waits until the children with an image have as many ready groups.
func (s *stage) awaitChildren(ctx context.Context, what, model string, prefill, decode int32) error {
	want := map[string]int32{"prefill": prefill, "decode": decode}
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		list, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil //nolint:nilerr // It is asked again.
		}
		found := 0
		for i := range list.Items {
			w := &list.Items[i]
			if strings.HasSuffix(w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image, model) &&
				w.Status.ReadyReplicas == want[w.Labels[disaggregated.RoleLabelKey]] {
				found++
			}
		}
		return found == len(want), nil
	})
	if err != nil {
		return fmt.Errorf("wait until %s: %w", what, err)
	}
	fmt.Fprintln(s.out, what)
	return nil
}

func (s *stage) serveSet(ctx context.Context) error {
	if err := s.cluster.ApplyConfig(ctx, "", deploy.Disaggregated); err != nil {
		return err
	}
	return s.serve(ctx)
}

func (s *stage) editSet(ctx context.Context) error {
	client, err := dynamic.NewForConfig(s.cluster.RESTConfig())
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	old := s.rolePods(ctx)
	const op = `{"op":"replace","path":"/spec/roles/%d/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":"registry.example/vllm:%s"}`
	patch := fmt.Appendf(nil, "["+op+","+op+"]", 0, newModel, 1, newModel)
	sets := client.Resource(disaggregated.GroupVersion.WithResource("disaggregatedsets")).Namespace(s.namespace)
	if _, err := sets.Patch(ctx, "llm", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	if err := s.awaitChildren(ctx, "LWS has created the new children, without groups", newModel, 0, 0); err != nil {
		return err
	}
	if s.rolePods(ctx) != old {
		return errors.New("groups moved although they are under hold")
	}
	fmt.Fprintf(s.out, "%s -> %s; pods unchanged\n", oldModel, newModel)
	return nil
}

// rolePods returns the pods of the set and their images, as text.
func (s *stage) rolePods(ctx context.Context) string {
	list, err := s.core.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: disaggregated.SetNameLabelKey})
	if err != nil {
		return err.Error()
	}
	lines := make([]string, 0, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		lines = append(lines, fmt.Sprintf("%-8s %-26s %s %s\n", p.Labels[disaggregated.RoleLabelKey], p.Name, p.Spec.Containers[0].Image, phase(p)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (s *stage) summarySet(ctx context.Context) error {
	if err := s.lockstep(ctx, "status", setName); err != nil {
		return err
	}
	pods := s.rolePods(ctx)
	fmt.Fprint(s.out, "\n", pods)
	if strings.Contains(pods, oldModel) {
		return errors.New("groups of the old revision are left")
	}
	return nil
}
