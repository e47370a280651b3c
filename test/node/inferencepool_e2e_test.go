// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package node

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/poolgateway"
	"github.com/lockstep-rollouts/lockstep/test/serving"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// The names in examples/inferencepool.
const (
	poolName, canaryPoolName     = "vllm", "vllm-canary"
	pickerName, canaryPickerName = "vllm-epp", "vllm-canary-epp"
)

var inferencePools = schema.GroupVersionResource{Group: traffic.InferenceGroup, Version: traffic.InferenceVersion, Resource: "inferencepools"}

// poolCourse is a release between InferencePools with an endpoint picker each: examples/inferencepool.
type poolCourse struct {
	*course

	gateway *poolgateway.Gateway
	begun   int    // the number of choices before the load
	pool    string // the user's pool, as it was
}

// A release between InferencePools, whose endpoints the pickers of the Inference Extension choose. A picker chooses ready leaders of its
// pool's revision only. The canary's pool has a ready picker before it has a share.
//
// Proves: InferencePools with real endpoint pickers: chosen leaders, exact shares.
func TestInferencePool(t *testing.T) {
	t.Parallel()
	t.Run("promoted", func(t *testing.T) {
		t.Parallel()
		c := beginPools(t, 0)
		c.waitsForPicker()
		for batch, weight := range []int32{10, 50, 100} {
			if batch > 0 {
				c.batch(int32(batch))
			}
			c.weigh(weight)
		}
		c.chose(poolName, c.Name, c.stable)
		c.chose(canaryPoolName, c.now(t.Context()).GetCanaryWorkload(), c.update)
		c.phase("promotion", 0)
		c.End(promote)
		c.endsPools("promoted")
	})
	t.Run("rolled-back", func(t *testing.T) {
		t.Parallel()
		c := beginPools(t, 1, func(w *lws.LeaderWorkerSet) {
			// A worker that hangs stays, and its leader stays ready.
			w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].LivenessProbe = nil
		})
		c.batch(1)
		c.weigh(50)
		c.avoidsUnreadyGroup()
		c.chose(poolName, c.Name, c.stable)
		c.chose(canaryPoolName, c.now(t.Context()).GetCanaryWorkload(), c.update)
		c.phase("rolling back", 0)
		c.End(rollback)
		c.update = c.stable
		c.endsPools("rolled back")
	})
}

// beginPools begins a release of examples/inferencepool, with a number of pods of the canary's picker.
func beginPools(t *testing.T, pickers int, changes ...func(*lws.LeaderWorkerSet)) *poolCourse {
	t.Helper()
	e := serving.NewEnv(t)
	s := serving.Prepare(e, driver.Start(t, driver.Kubeconfig(t, e.Cluster), e.Namespace))
	s.Name, s.StableService, s.RouteName = "vllm", "vllm-leader", "vllm"
	s.Ref.Name = s.Name
	create(s)

	image, err := e.Cluster.PushEndpointPicker(t.Context())
	require.NoError(t, err)
	picker := strings.NewReplacer(
		"registry.k8s.io/gateway-api-inference-extension/epp:v1.5.0", image, "namespace: default", "namespace: "+s.Namespace,
	).Replace(example(t, "canary-picker.yaml"))
	apply(s, strings.Replace(picker, "replicas: 1", fmt.Sprintf("replicas: %d", pickers), 1))
	apply(s, strings.ReplaceAll(picker, "vllm-canary", "vllm"))
	apply(s, strings.ReplaceAll(example(t, "pool.yaml"), "8000", fmt.Sprint(podanswer.Port)))
	c := &poolCourse{}
	c.gateway, err = poolgateway.Start(t.Context(), e.Cluster.RESTConfig(), s.Namespace, s.RouteName)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, c.gateway.Stop())
	})
	e.Gateway = c.gateway.Address()
	s.Eventually("the stable picker is ready", func(ctx context.Context) error { return s.HasEndpoints(ctx, pickerName, 1) })
	s.Served()
	c.begun = len(c.gateway.Choices())
	s.User = s.Carriers()
	c.pool = userPool(s)
	c.course = beginOf(s, examplePolicy(t), changes...)
	c.services = []string{pickerName, canaryPickerName}
	c.tolerance = 2 // of what a phase has seen; sharesAreExact counts every request
	return c
}

// example returns a file of examples/inferencepool.
func example(t *testing.T, name string) string {
	t.Helper()
	content := files.Read(t, filepath.Join("..", "..", "examples", "inferencepool", name))
	return string(content)
}

// apply applies a manifest in which "%" has no meaning.
func apply(s *serving.Release, manifest string) {
	s.T.Helper()
	s.Apply("%s", manifest)
}

// examplePolicy returns the policy of examples/inferencepool.
func examplePolicy(t *testing.T) *pb.ReleasePolicy {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(example(t, "policy.yaml")))
	require.NoError(t, err)
	policy := &pb.ReleasePolicy{}
	require.NoError(t, protojson.Unmarshal(raw, policy))
	return policy
}

// userPool returns the user's pool without what the API server and the gateway write.
func userPool(s *serving.Release) string {
	s.T.Helper()
	o := suite.GetObject(s.T.Context(), s.T, s.Objects(inferencePools), poolName)
	return text.JSON([]any{o.Object["spec"], o.GetLabels(), o.GetAnnotations()})
}

// pickerWaits requires that the canary's picker is unready without its pool, and ready with the next one, without a restart.
func (c *poolCourse) pickerWaits() {
	c.T.Helper()
	ready := func(want int) func(context.Context) error {
		return func(ctx context.Context) error { return c.HasEndpoints(ctx, canaryPickerName, want) }
	}
	c.Eventually("the canary's picker is unready without its pool", ready(0))
	_, rest, _ := strings.Cut(example(c.T, "pool.yaml"), "---\n")
	next, _, _ := strings.Cut(rest, "---\n")
	apply(c.Release, strings.Replace(next, "name: vllm\n", "name: "+canaryPoolName+"\n", 1))
	c.Eventually("the canary's picker is ready with the next pool", ready(1))
	pods, err := c.Kube.CoreV1().Pods(c.Namespace).List(c.T.Context(), metav1.ListOptions{LabelSelector: "app=" + canaryPickerName})
	require.True(c.T, err == nil && len(pods.Items) == 1, "pods of the canary's picker: %v: %v", pods, err)
	n := pods.Items[0].Status.ContainerStatuses[0].RestartCount
	assert.LessOrEqual(c.T, n, int32(0), "the canary's picker was restarted %d times", n)
}

// waitsForPicker requests the first share while the canary's picker does not run. The canary gets requests once it does.
func (c *poolCourse) waitsForPicker() {
	c.T.Helper()
	c.batch(0)
	c.phase("no picker", 0)
	weight := &pb.SetWeightRequest{Workload: c.Ref, ReleaseId: "r1", Weight: 10}
	_, err := c.SetWeight(c.T.Context(), weight)
	require.NoError(c.T, err)
	c.Eventually("the driver waits for the picker", func(ctx context.Context) error {
		r, err := c.VerifyWeight(ctx, &pb.VerifyWeightRequest{Workload: c.Ref, ReleaseId: "r1", Weight: 10})
		if err != nil {
			return err
		}
		if r.GetVerified() || r.GetReason() != traffic.ReasonNoPicker {
			return fmt.Errorf("VerifyWeight: %v", r)
		}
		return nil
	})
	c.Await(c.requests, enough)
	assert.Empty(c.T, c.choicesOf(canaryPoolName), "requests went to the canary's pool before it had a picker")
	patch := []byte(`{"spec":{"replicas":1}}`)
	_, err = c.Kube.AppsV1().Deployments(c.Namespace).Patch(c.T.Context(), canaryPickerName, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(c.T, err)
}

// avoidsUnreadyGroup has a worker of the canary hang. Its leader is ready, and is not chosen any more.
func (c *poolCourse) avoidsUnreadyGroup() {
	c.T.Helper()
	c.phase("a worker hangs", 0)
	leader := c.now(c.T.Context()).GetCanaryWorkload() + "-0"
	c.fail(leader+"-1", "hang")
	c.Eventually("the group is unready", func(context.Context) error {
		if c.pod(leader).Labels[record.ServingLabel] != "" {
			return fmt.Errorf("leader %s has its label", leader)
		}
		return nil
	})
	c.phase("its label is removed", 0)
	c.Await(c.requests, enough) // until all requests from before have ended
	before := len(c.choices())
	c.phase("a group is unready", 0)
	c.Await(c.requests, enough)
	if pod := c.pod(leader); !grouptags.Ready(pod) {
		c.T.Errorf("leader %s is not ready: %v", leader, pod.Status.Conditions)
	}
	pods := map[string]int{}
	for _, choice := range c.choices()[before:] {
		if choice.Pool == canaryPoolName {
			pods[choice.Answer.Pod]++
		}
	}
	assert.True(c.T, pods[leader] <= 0 && len(pods) != 0,
		"the canary's picker chose %v: want other leaders than %s, whose group is unready", pods, leader)
}

// choices returns those of the load, of requests that have ended.
func (c *poolCourse) choices() []poolgateway.Choice { return c.gateway.Choices()[c.begun:] }

func (c *poolCourse) choicesOf(pool string) []poolgateway.Choice {
	var all []poolgateway.Choice
	for _, choice := range c.choices() {
		if choice.Pool == pool {
			all = append(all, choice)
		}
	}
	return all
}

// chose requires that a pool's picker has chosen ready leaders of one workload and revision only, and several of them.
func (c *poolCourse) chose(pool, workload, revision string) {
	c.T.Helper()
	pods, wrong := map[string]int{}, []poolgateway.Choice(nil)
	for _, choice := range c.choicesOf(pool) {
		a := choice.Answer
		if !ofReadyLeader(choice) || a.Workload != workload || a.Revision != revision {
			wrong = append(wrong, choice)
		}
		pods[a.Pod]++
	}
	if len(wrong) > 0 {
		c.T.Errorf("%d choices of pool %s are not of ready leaders of %s at revision %s: %+v", len(wrong), pool, workload, revision, wrong[0])
	}
	assert.GreaterOrEqual(c.T, len(pods), 2, "the picker of pool %s chose %v", pool, pods)
	c.T.Logf("the picker of pool %s chose %v", pool, pods)
}

// sharesAreExact requires that of the requests under each of the route's weights, the pods of each pool answered its share, to within one
// request.
func (c *poolCourse) sharesAreExact() {
	c.T.Helper()
	got, sums := map[*poolgateway.Table]map[string]int{}, map[*poolgateway.Table]int{}
	for _, choice := range c.choices() {
		if choice.Table == nil {
			continue
		}
		if got[choice.Table] == nil {
			got[choice.Table] = map[string]int{}
		}
		workload := choice.Answer.Workload
		if workload != c.Name {
			workload = canaryPoolName
		}
		got[choice.Table][workload]++
		sums[choice.Table]++
	}
	for table, sum := range sums {
		all := 0
		for _, weight := range table.Weights {
			all += weight
		}
		for _, pool := range []string{poolName, canaryPoolName} {
			want := float64(sum) * float64(table.Weights[pool]) / float64(all)
			if n := got[table][pool]; math.Abs(float64(n)-want) >= 1 {
				c.T.Errorf("by the weights %v pods of pool %s answered %d of %d requests, want %g", table.Weights, pool, n, sum, want)
			}
		}
		c.T.Logf("by the weights %v the pods of each pool answered %v of %d requests", table.Weights, got[table], sum)
	}
}

// endsPools requires that the release left nothing, the pool included, and that the canary's picker waits for the next release.
func (c *poolCourse) endsPools(name string) {
	c.T.Helper()
	c.ends(name)
	now := userPool(c.Release)
	assert.Equal(c.T, c.pool, now, "the user's pool is not as it was:\n%s\n%s", c.pool, now)
	client := c.Objects(inferencePools)
	_, err := client.Get(c.T.Context(), canaryPoolName, metav1.GetOptions{})
	assert.True(c.T, apierrors.IsNotFound(err), "the canary's pool is left: %v", err)
	c.sharesAreExact()
	c.pickerWaits()
	if wrong := slices.DeleteFunc(c.choices(), ofReadyLeader); len(wrong) > 0 {
		c.T.Errorf("%d choices are not of ready leaders: %+v", len(wrong), wrong[0])
	}
}

// ofReadyLeader reports whether the pod says that it leads a group whose workers are all connected to it, and that it serves.
func ofReadyLeader(c poolgateway.Choice) bool {
	return c.Err == nil && c.Answer.Role == podanswer.RoleLeader && c.Answer.Violation == ""
}
