// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	// name is the LeaderWorkerSet's and the Rollout's.
	name   = "vllm"
	groups = 4
)

var (
	rollouts   = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "rollouts"}
	httpRoutes = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
)

// env is one test's namespace.
type env struct {
	*suite.Env // Name is the Rollout's name, too.
}

func newEnv(t *testing.T) *env {
	t.Helper()
	c := cluster.Shared(t)
	e := &env{suite.NewEnv(t, c, name)}
	t.Cleanup(func() {
		if t.Failed() {
			e.Dump(rollouts, corev1.SchemeGroupVersion.WithResource("events"))
		}
		// A Rollout that is left would continue in the background of other tests.
		e.removeRollouts()
	})
	suite.RecordStatuses(t, c, &pb.CalculateBatchContextRequest{
		Workload: &pb.WorkloadRef{Namespace: e.Namespace, Name: name},
	}, rollouts)
	return e
}

// newRelease deploys the workload and a Rollout with these steps, and returns when both are at rest.
func newRelease(t *testing.T, steps string, changes ...change) *env {
	t.Helper()
	e := newEnv(t)
	e.deploy(changes...)
	e.rollout(steps, changes...)
	e.awaitRest("v1")
	return e
}

// change modifies the workload or the Rollout of one test.
type change struct {
	annotations map[string]string // of pods
	spec        string            // more of the Rollout's spec
	config      string            // more of the plugin's configuration
	routing     string            // more of the traffic routing
}

// podsWith sets an annotation on the workload's pods.
func podsWith(key, value string) change { return change{annotations: map[string]string{key: value}} }

// slow makes groups start within a second, so that a test can observe them.
func slow() change { return podsWith(cluster.AnnotationStartup, "1s") }

func withSpec(yaml string) change   { return change{spec: yaml} }
func withConfig(yaml string) change { return change{config: ", " + yaml} }

func withRouting(yaml string) change { return change{routing: yaml} }

// deploy creates the workload with image v1, and returns when its groups are ready.
func (e *env) deploy(changes ...change) {
	e.T.Helper()
	annotations := map[string]string{}
	for _, c := range changes {
		maps.Copy(annotations, c.annotations)
	}
	e.Deploy(groups, annotations)
}

// rollout creates the Rollout with its steps, which are YAML without indentation.
func (e *env) rollout(steps string, changes ...change) {
	e.T.Helper()
	e.Apply(rolloutManifest(name, steps, changes...))
}

func rolloutManifest(rollout, steps string, changes ...change) string {
	spec, config, routing := "  progressDeadlineSeconds: 2147483647\n", "", ""
	for _, c := range changes {
		if c.spec != "" {
			spec = indent(c.spec, "  ")
		}
		config += c.config
		routing += c.routing
	}
	return fmt.Sprintf(`
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: %s}
spec:
  replicas: 0
%s
  selector: {matchLabels: {app: %s}}
  template:
    metadata: {labels: {app: %s}}
    spec: {containers: [{name: none, image: "example.com/none:v1"}]}
  strategy:
    canary:
      trafficRouting:
        %s
        plugins:
          lockstep/lws: {workload: %s%s}
      steps:
%s`, rollout, spec, rollout, rollout, routing, name, config, indent(steps, "      "))
}

func indent(text, by string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	return by + strings.Join(lines, "\n"+by)
}

// step is a plugin step.
func step(config string) string {
	return "- plugin: {name: lockstep/lws, config: {" + config + "}}\n"
}

const pause = "- pause: {}\n"

// edit changes the workload's image, as a GitOps tool does.
func (e *env) edit(tag string, changes ...change) {
	e.T.Helper()
	e.Edit(tag, func(w *lws.LeaderWorkerSet) {
		for _, template := range suite.Templates(w) {
			for _, c := range changes {
				for key, value := range c.annotations {
					metav1.SetMetaDataAnnotation(&template.ObjectMeta, key, value)
				}
			}
		}
	})
}

// get reads the Rollout.
func (e *env) get(ctx context.Context) *v1alpha1.Rollout {
	e.T.Helper()
	r, err := e.tryGet(ctx, e.Name)
	require.NoError(e.T, err)
	return r
}

func (e *env) tryGet(ctx context.Context, rollout string) (*v1alpha1.Rollout, error) {
	object, err := e.Objects(rollouts).Get(ctx, rollout, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	r := &v1alpha1.Rollout{}
	return r, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, r)
}

// patch applies a JSON merge patch to the Rollout.
func (e *env) patch(raw string) {
	e.T.Helper()
	suite.Patch(e.T, e.Objects(rollouts), e.Name, raw)
}

// argo runs Argo's own kubectl plugin and returns what it prints.
func (e *env) argo(args ...string) string {
	e.T.Helper()
	path, err := cluster.KubectlArgo(e.T.Context())
	require.NoError(e.T, err)
	ctx, cancel := context.WithTimeout(e.T.Context(), await.Patience)
	defer cancel()
	args = append(args, "--namespace", e.Namespace, "--kubeconfig", e.Cluster.Kubeconfig())
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	require.NoError(e.T, err, "kubectl argo rollouts %s: %v\n%s", strings.Join(args, " "), err, out)
	return string(out)
}

// await waits for a state of the Rollout at its latest generation.
func (e *env) await(what string, check func(*v1alpha1.Rollout) bool) *v1alpha1.Rollout {
	e.T.Helper()
	var r *v1alpha1.Rollout
	e.Eventually(what, func(ctx context.Context) error {
		r = e.get(ctx)
		if r.Status.ObservedGeneration != fmt.Sprint(r.Generation) || !check(r) {
			return fmt.Errorf("generation %d, observed %s, step %d of %d, phase %s: %s; %s", r.Generation, r.Status.ObservedGeneration,
				index(r), len(r.Spec.Strategy.Canary.Steps), r.Status.Phase, r.Status.Message, stepMessages(r))
		}
		return nil
	})
	return r
}

// awaitPause waits until the Rollout rests at a pause that is its step i.
func (e *env) awaitPause(i int32) {
	e.T.Helper()
	e.await(fmt.Sprintf("the pause at step %d", i), func(r *v1alpha1.Rollout) bool {
		return index(r) == i && r.Status.Phase == v1alpha1.RolloutPhasePaused && r.Status.ControllerPause
	})
}

// awaitStep waits until step i runs, and has been called.
func (e *env) awaitStep(i int32) *v1alpha1.Rollout {
	e.T.Helper()
	return e.await(fmt.Sprintf("step %d", i), func(r *v1alpha1.Rollout) bool { return index(r) == i })
}

func (e *env) awaitPhase(phase v1alpha1.RolloutPhase) *v1alpha1.Rollout {
	e.T.Helper()
	return e.await("phase "+string(phase), func(r *v1alpha1.Rollout) bool { return r.Status.Phase == phase })
}

// awaitRest waits until the Rollout is healthy and nothing of a release is left, with all groups at the tag.
func (e *env) awaitRest(tag string) {
	e.T.Helper()
	e.awaitPhase(v1alpha1.RolloutPhaseHealthy)
	e.MustRest(tag)
}

// awaitAborted waits until the Rollout is degraded because of an abort, and nothing of the release is left.
func (e *env) awaitAborted(tag string) {
	e.T.Helper()
	e.await("the abort", func(r *v1alpha1.Rollout) bool {
		return r.Status.Abort && r.Status.Phase == v1alpha1.RolloutPhaseDegraded
	})
	e.MustRest(tag)
}

// same fails the test if the workload's own pods have changed.
func (e *env) same(before map[string]types.UID) {
	e.T.Helper()
	now := e.Identities()
	assert.True(e.T, maps.Equal(before, now), "pods of the workload were replaced: %v, were %v", now, before)
}

// counts returns the number of ready groups at a tag, of the workload and of its canary.
func (e *env) counts(ctx context.Context, tag string) (stable, canary int, err error) {
	pods, err := e.Pods(ctx, "")
	if err != nil {
		return 0, 0, err
	}
	whole := map[string]int{}
	for i := range pods {
		if p := &pods[i]; grouptags.OfPod(p) == tag && grouptags.Ready(p) {
			whole[p.Labels[lws.SetNameLabelKey]+"/"+p.Labels[lws.GroupIndexLabelKey]]++
		}
	}
	for group, pods := range whole {
		switch {
		case pods != 2:
		case strings.HasPrefix(group, e.Name+"/"):
			stable++
		default:
			canary++
		}
	}
	return stable, canary, nil
}

// mustHave waits until a number of groups are ready at a tag: LWS may recreate a group that it has just created.
func (e *env) mustHave(tag string, stable, canary int) {
	e.T.Helper()
	e.Eventually(fmt.Sprintf("at %s %d groups of the workload and %d of its canary are ready", tag, stable, canary), func(ctx context.Context) error {
		s, c, err := e.counts(ctx, tag)
		if err == nil && (s != stable || c != canary) {
			err = fmt.Errorf("there are %d and %d", s, c)
		}
		return err
	})
}

// awaitCanary waits until a canary group exists, ready or not.
func (e *env) awaitCanary() {
	e.T.Helper()
	e.Eventually("a canary group", func(ctx context.Context) error {
		pods, err := e.Pods(ctx, "")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Labels[lws.SetNameLabelKey] != e.Name }) {
			return errors.New("there is none")
		}
		return nil
	})
}

// delete deletes a Rollout.
func (e *env) delete(rollout string) {
	e.T.Helper()
	suite.DeleteObject(e.T, e.Objects(rollouts), rollout)
}

// said returns all that users read about a Rollout: its conditions, its steps' messages, and its events.
func (e *env) said(ctx context.Context, rollout string) (string, error) {
	r, err := e.tryGet(ctx, rollout)
	if err != nil {
		return "", err
	}
	all := []string{r.Status.Message, stepMessages(r)}
	for _, condition := range r.Status.Conditions {
		all = append(all, condition.Message)
	}
	events, err := e.Kube.EventsV1().Events(e.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, event := range events.Items {
		if event.Regarding.Kind == "Rollout" && event.Regarding.Name == rollout {
			all = append(all, event.Note)
		}
	}
	return strings.Join(all, "\n"), nil
}

// awaitSaid waits until the texts about a Rollout contain some words.
func (e *env) awaitSaid(rollout string, words ...string) {
	e.T.Helper()
	e.Eventually("the Rollout reports "+strings.Join(words, ", "), func(ctx context.Context) error {
		text, err := e.said(ctx, rollout)
		if err != nil {
			return err
		}
		for _, word := range words {
			if !strings.Contains(text, word) {
				return errors.New(text)
			}
		}
		return nil
	})
}

// removeRollouts deletes the remaining Rollouts and waits for their deletion.
func (e *env) removeRollouts() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client := e.Objects(rollouts)
	if err := client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) {
		e.T.Logf("delete Rollouts: %v", err)
	}
}

func index(r *v1alpha1.Rollout) int32 {
	if r.Status.CurrentStepIndex == nil {
		return -1
	}
	return *r.Status.CurrentStepIndex
}

// stepMessages returns the plugin's message of each of its steps.
func stepMessages(r *v1alpha1.Rollout) string {
	var all []string
	for _, s := range r.Status.Canary.StepPluginStatuses {
		all = append(all, fmt.Sprintf("[%d %s %s: %s]", s.Index, s.Operation, s.Phase, s.Message))
	}
	return strings.Join(all, " ")
}

// ran returns Argo's status of the calls of step i's Run.
func ran(r *v1alpha1.Rollout, i int32) v1alpha1.StepPluginStatus {
	for _, s := range r.Status.Canary.StepPluginStatuses {
		if s.Index == i && s.Operation == v1alpha1.StepPluginOperationRun {
			return s
		}
	}
	return v1alpha1.StepPluginStatus{}
}

func asJSON(v any) string { return text.JSON(v) }
