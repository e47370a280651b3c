// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/argo/install"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// redraw is how often the picture is made anew.
const redraw = 500 * time.Millisecond

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

// argoScenes are the story with Argo Rollouts as the host.
func (s *stage) argoScenes() []scene {
	return []scene{
		{"A real control plane, with LeaderWorkerSet and Argo Rollouts. Lockstep is its plugin, with the rights of config/argo", s.raise},
		{"A LeaderWorkerSet: 4 groups of 2 pods, 1 GPU each", s.deploy},
		{"A Rollout with 0 replicas, which names it. From now on a change of the template moves no group by itself", s.compose},
		{"A new model image, as GitOps would bring it: it starts the Rollout", s.edit},
		{"The release: kubectl argo rollouts get rollout " + name + ", and the groups", s.follow},
		{"What is left: every group at the new revision, no canary", s.remains},
	}
}

// plugin puts Lockstep into Argo.
func (s *stage) plugin(ctx context.Context, c *cluster.Cluster) error {
	return install.Plugin(ctx, c, s.script.lockstep)
}

func (s *stage) compose(ctx context.Context) error {
	var steps strings.Builder
	batches := strings.Split(s.script.batches, ",")
	for i, batch := range batches {
		fmt.Fprintf(&steps, "      - plugin: {name: lockstep/lws, config: {upgrade: %s}}\n", batch)
		if i < len(batches)-1 {
			fmt.Fprintf(&steps, "      - pause: {duration: %s}\n", s.script.pause)
		}
	}
	if err := s.cluster.Apply(ctx, namespace, fmt.Appendf(nil, rollout, name, steps.String())); err != nil {
		return err
	}
	fmt.Fprint(s.out, steps.String())
	return s.watch(ctx, func(r *unstructured.Unstructured) bool { return healthy(r) })
}

// follow shows the release until the Rollout is healthy at another revision.
func (s *stage) follow(ctx context.Context) error {
	begun := false
	return s.watch(ctx, func(r *unstructured.Unstructured) bool {
		begun = begun || !healthy(r)
		return begun && healthy(r)
	})
}

// healthy says whether Argo has seen all that was written to the Rollout, and has nothing to do.
func healthy(r *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(r.Object, "status", "phase")
	observed, _, _ := unstructured.NestedString(r.Object, "status", "observedGeneration")
	return phase == "Healthy" && observed == fmt.Sprint(r.GetGeneration())
}

var rolloutResource = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "rollouts"}

// watch shows what Argo's kubectl plugin says, beside the groups, whenever something has changed, until done.
func (s *stage) watch(ctx context.Context, done func(*unstructured.Unstructured) bool) error {
	client, err := dynamic.NewForConfig(s.cluster.RESTConfig())
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*patience)
	defer cancel()
	for last, lines := "", 0; ; {
		r, err := client.Resource(rolloutResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get Rollout: %w", err)
		}
		picture, err := s.picture(ctx)
		if err != nil {
			return err
		}
		if now := ages.ReplaceAllString(picture, ""); now != last {
			if last != "" && s.live() {
				fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", lines)
			}
			fmt.Fprintln(s.out, picture)
			last, lines = now, strings.Count(picture, "\n")+1
		}
		if done(r) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(redraw):
		}
	}
}

// ages change all the time and mean nothing here.
var ages = regexp.MustCompile(`\b\d+(s|m|m\d+s)\b`)

// picture is Argo's view of the Rollout beside ours of the groups.
func (s *stage) picture(ctx context.Context) (string, error) {
	kubectl, err := cluster.KubectlArgo(ctx)
	if err != nil {
		return "", err
	}
	get := exec.CommandContext(ctx, kubectl, "get", "rollout", name, "--no-color", "--namespace", namespace, "--kubeconfig", s.cluster.Kubeconfig())
	text, err := get.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl argo rollouts get rollout: %w: %s", err, text)
	}
	both := lipgloss.JoinHorizontal(lipgloss.Top, strings.TrimSpace(string(text)), "     ", s.groups(ctx))
	lines := strings.Split(both, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + "\n", nil
}

// groups are the pods of the workload and of its canary.
func (s *stage) groups(ctx context.Context) string {
	list, err := s.core.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: lws.SetNameLabelKey})
	if err != nil {
		return err.Error()
	}
	lines := []string{"POD", ""}
	for i := range list.Items {
		p := &list.Items[i]
		_, tag, _ := strings.Cut(p.Spec.Containers[0].Image, ":")
		lines = append(lines, fmt.Sprintf("%-22s %-12s %s", p.Name, tag, phase(p)))
	}
	return strings.Join(lines, "\n")
}

// live says whether a picture can be drawn over.
func (s *stage) live() bool {
	file, ok := s.out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (s *stage) remains(ctx context.Context) error {
	fmt.Fprint(s.out, s.pods(ctx))
	return s.alone(ctx)
}
