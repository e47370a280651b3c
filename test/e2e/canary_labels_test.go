// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

const (
	rolloutIDLabel    = "rollouts.kruise.io/rollout-id"
	rolloutBatchLabel = "rollouts.kruise.io/rollout-batch-id"
)

// batchesOf returns the rollout labels of a set's groups, by index: "1 2 3 3", with "-" for a group without labels and "?" for
// a group whose pods differ.
func (w *workload) batchesOf(set, id string) string {
	w.t.Helper()
	groups := map[string][]string{}
	for _, p := range w.podsOf(set) {
		if p.DeletionTimestamp != nil {
			continue
		}
		text := "-"
		if got := p.Labels[rolloutIDLabel]; got == id {
			text = p.Labels[rolloutBatchLabel]
		} else if got != "" || p.Labels[rolloutBatchLabel] != "" {
			text = "?"
		}
		index := p.Labels[lws.GroupIndexLabelKey]
		if !slices.Contains(groups[index], text) {
			groups[index] = append(groups[index], text)
		}
	}
	var all []string
	for _, index := range slices.Sorted(maps.Keys(groups)) {
		if len(groups[index]) > 1 {
			groups[index] = []string{"?"}
		}
		all = append(all, groups[index][0])
	}
	return strings.Join(all, " ")
}

func (w *workload) awaitBatches(set, id, want string) {
	w.t.Helper()
	w.eventually("the pods of "+set+" are labelled "+want, func(context.Context) error {
		if got := w.batchesOf(set, id); got != want {
			return fmt.Errorf("the labels are %s", got)
		}
		return nil
	})
}

func (w *workload) mustBatches(set, id, want string) {
	w.t.Helper()
	assert.Equal(w.t, want, w.batchesOf(set, id), "the pods of %s are labelled", set)
}

// podWrites counts the drivers' writes of pods of a set.
func (w *workload) podWrites(set string) int {
	w.t.Helper()
	of, n := regexp.MustCompile("^patch pods/"+set+"-[0-9]+(-[0-9]+)?$"), 0
	for _, write := range w.writes() {
		if of.MatchString(write) {
			n++
		}
	}
	return n
}

// By the time a batch is ready, each pod of its groups has labels with the rollout and the batch. They are written once, restored
// when they are removed by hand, set on replacement pods, and survive a restart of the driver.
//
// Proves: Labels of batches; Disown after a scale-down.
func TestCanaryBatchLabels(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 4, 3))
	w.edit(image("v2"))
	p := quarters()
	p.RolloutId = "rollout-7"
	w.initialize("r1", p)
	canary := ""
	for batch, want := range []string{"1", "1 2", "1 2 3 3"} {
		c := w.upgrade("r1", int32(batch)).GetContext()
		canary = c.GetCanaryWorkload()
		require.Equal(t, pb.State_STATE_READY, c.GetState(), "batch %d: %s", batch, show(c))
		w.awaitBatches(canary, "rollout-7", want)
	}
	if n := w.podWrites(canary); n < 4*3 || n > 2*4*3 { // LWS recreates some groups that it has just created
		t.Errorf("%d writes for 12 pods", n)
	}
	w.mustBatches(w.name, "rollout-7", "- - - -")

	pods := w.kube.CoreV1().Pods(w.namespace)
	off := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, rolloutBatchLabel)
	_, err := pods.Patch(t.Context(), canary+"-1-2", types.MergePatchType, off, metav1.PatchOptions{})
	require.NoError(t, err)
	w.awaitBatches(canary, "rollout-7", "1 2 3 3")

	w.driver.Kill()
	suite.Delete(t, pods, canary+"-1")
	w.awaitBatches(canary, "rollout-7", "1 - 3 3")
	w.driver.Restart()
	w.awaitBatches(canary, "rollout-7", "1 2 3 3")

	// Percentages mean other numbers now, existing labels stay, and new groups get labels.
	before := w.podWrites(canary)
	w.scale(8)
	w.await("the batch is ready at 8 groups", func(c *pb.BatchContext) bool {
		return c.GetState() == pb.State_STATE_READY && c.GetUpdatedReady() == 8
	})
	// LWS may recreate group 1 once more, and the labels of its pods are lost.
	got := w.batchesOf(canary, "rollout-7")
	assert.False(t, got != "1 2 3 3 3 3 3 3" && got != "1 1 3 3 3 3 3 3", "the pods of %s are labelled %s", canary, got)
	if n := w.podWrites(canary) - before; n < 4*3 || n > 2*4*3 { // as above
		t.Errorf("%d writes for 12 new pods", n)
	}

	w.finalize("r1", promote)
	w.awaitBatches(w.name, "rollout-7", "3 3 3 3 2 2 1 1")
	if n := w.podWrites(w.name); n < 8*3 || n > 2*8*3 { // as above
		t.Errorf("%d writes for 24 promoted pods", n)
	}
	w.mustBeIdle()

	// The release is over: a new group gets no labels.
	w.scale(9)
	w.awaitReady()
	w.mustBatches(w.name, "rollout-7", "3 3 3 3 2 2 1 1 -")
}

// LWS v0.10.0 copies labels and annotations of a LeaderWorkerSet, including the record, to its StatefulSets. That costs at most one
// write of the leader StatefulSet per write of the record, and none of existing worker StatefulSets: nothing grows with the groups.
//
// Proves (smoke): LWS v0.10.0 copies the record to StatefulSets: writes do not grow with the groups.
func TestCanaryRecordCopies(t *testing.T) {
	t.Parallel()
	// Adopt, begin, roll back, end. The driver may observe the new template when it adopts, and save a write.
	const most = 4
	for _, groups := range []int32{2, 8} {
		t.Run(fmt.Sprintf("%d-groups", groups), func(t *testing.T) {
			e := newEnv(t)
			w := e.deploy(model("model", groups, 2))
			copies := e.countCopies("model")
			_, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
			require.NoError(t, err)
			w.edit(image("v2"))
			w.initialize("r1", policy("1", "2"))
			w.upgrade("r1", 0)
			w.upgrade("r1", 1)
			w.finalize("r1", rollback)
			writes := 0
			for _, write := range e.writes() {
				if write == "patch leaderworkersets/model" {
					writes++
				}
			}
			leader, workers := copies()
			t.Logf("LWS %s, %d groups: %d writes of the record, copied %d times to the leader StatefulSet, %d times to worker StatefulSets",
				e.cluster.Versions().LWS, groups, writes, leader, workers)
			assert.True(t, writes != 0 && writes <= most, "the driver wrote the record %d times, want 1 to %d for any number of groups", writes, most)
			assert.True(t, leader <= writes && workers <= 0,
				"want at most %d copies to the leader StatefulSet and none to worker StatefulSets, got %d and %d", writes, leader, workers)
		})
	}
}

// lockstepKeys returns Lockstep's labels or annotations.
func lockstepKeys(all map[string]string) map[string]string {
	copied := maps.Clone(all)
	maps.DeleteFunc(copied, func(key, _ string) bool { return !strings.HasPrefix(key, "lockstep.dev/") })
	return copied
}

// countCopies starts counting changes of Lockstep's labels and annotations on a workload's StatefulSets. The returned function
// stops it and returns the counts.
func (e *env) countCopies(name string) func() (leader, workers int) {
	e.t.Helper()
	sets := e.kube.AppsV1().StatefulSets(e.namespace)
	list := suite.List(e.t, sets, metav1.ListOptions{})
	last := map[string]*appsv1.StatefulSet{}
	for i := range list.Items {
		last[list.Items[i].Name] = &list.Items[i]
	}
	require.False(e.t, last[name] == nil || last[name+"-0"] == nil, "%s lacks a leader or a worker StatefulSet", name)
	ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Minute)
	w, err := sets.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		cancel()
		e.t.Fatal(err)
	}
	leader, workers := 0, 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			now, ok := event.Object.(*appsv1.StatefulSet)
			if !ok || last[now.Name] == nil {
				continue // created meanwhile, for the canary
			}
			before := last[now.Name]
			last[now.Name] = now
			switch {
			case maps.Equal(lockstepKeys(before.Annotations), lockstepKeys(now.Annotations)) && maps.Equal(lockstepKeys(before.Labels), lockstepKeys(now.Labels)):
			case now.Name == name:
				leader++
			case strings.HasPrefix(now.Name, name+"-"):
				workers++
			}
		}
	}()
	return func() (int, int) {
		w.Stop()
		cancel()
		<-done
		return leader, workers
	}
}

// An editor of DisaggregatedSets sets no marks in roles and their pod templates, which LeaderWorkerSet copies to children: the request itself
// is refused. Users who may drive the releases of the namespace set them.
//
// Proves: Marks in requests for the status; the driver's account touches only what has its marks.
func TestDisaggregatedMarks(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	editor, operator := tenant.Pair(t, e.cluster, e.namespace, rbacv1.PolicyRule{
		APIGroups: []string{roleSetsResource.Group}, Resources: []string{roleSetsResource.Resource}, Verbs: []string{"*"},
	})
	manifest := func(mark string) string {
		return suite.RolesManifest("llm", 1, 1, func(string) string {
			return fmt.Sprintf(`{metadata: {labels: {%q: "true"}}, spec: {containers: [{name: server, image: "example.com/model:v1"}]}}`, mark)
		})
	}
	e.eventually("a set with marks is refused", func(context.Context) error {
		return tenant.Refused(editor.Create(roleSetsResource, manifest("lockstep.dev/serving")), e.namespace, "lockstep.dev/serving on disaggregatedsets")
	})
	require.NoError(t, editor.Create(roleSetsResource, manifest("test.lockstep.dev/a")))
	patch := func(as tenant.User, options metav1.PatchOptions, op, path, value string) error {
		body := fmt.Appendf(nil, `[{"op":%q,"path":"/spec/roles/%s","value":%s}]`, op, path, value)
		_, err := as.Resource(roleSetsResource).Namespace(e.namespace).Patch(t.Context(), "llm", types.JSONPatchType, body, options)
		return err
	}
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	const template = "/spec/leaderWorkerTemplate/"
	set := func(as tenant.User, path, field string) error {
		return patch(as, dry, "add", path, `{"`+field+`":{"lockstep.dev/x":"y"}}`)
	}
	for _, path := range []string{"1/metadata", "0" + template + "workerTemplate/metadata"} {
		for _, field := range []string{"labels", "annotations"} {
			assert.NoError(t, tenant.Refused(set(editor, path, field), e.namespace, "lockstep.dev/x"), "%s of %s", field, path)
			assert.NoError(t, set(operator, path, field), "an operator, %s of %s", field, path)
		}
	}
	leader := `{"metadata":{"labels":{"lockstep.dev/x":"y"}},"spec":{"containers":[{"name":"server","image":"example.com/model:v1"}]}}`
	assert.NoError(t, tenant.Refused(patch(editor, dry, "add", "1"+template+"leaderTemplate", leader), e.namespace, "lockstep.dev/x"))
	third := `{"name":"encode","metadata":{"labels":{"lockstep.dev/x":"y"}},"spec":{"replicas":1,"leaderWorkerTemplate":{"workerTemplate":` + leader + `}}}`
	assert.NoError(t, tenant.Refused(patch(editor, dry, "add", "-", third), e.namespace, "lockstep.dev/x, lockstep.dev/x"))

	require.NoError(t, patch(operator, metav1.PatchOptions{}, "add", "1/metadata", `{"labels":{"lockstep.dev/x":"y"}}`))
	assert.NoError(t, patch(editor, dry, "replace", "1"+template+"workerTemplate/spec/containers/0/image", `"example.com/model:v2"`),
		"an edit beside a mark")
	assert.NoError(t, tenant.Refused(patch(editor, dry, "replace", "1/metadata", "{}"), e.namespace, "lockstep.dev/x"), "a mark is removed")
}
