// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// Names that Lockstep writes, repeated here on purpose: changing one changes the contract.
const (
	recordAnnotation = "lockstep.dev/release"
	targetAnnotation = "lockstep.dev/target"
	roleLabel        = "lockstep.dev/role"
	stableLabel      = "lockstep.dev/stable"
	finalizer        = "lockstep.dev/release"
	holdPartition    = 1_000_000
)

const (
	promote  = pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	rollback = pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK

	unchanged  = pb.Action_ACTION_UNCHANGED
	configured = pb.Action_ACTION_CONFIGURED
)

// workload is a workload under test and the driver through which it is released.
type workload struct {
	*env
	driver *driver.Driver
	name   string
	kind   string // empty for a LeaderWorkerSet
}

// model returns a LeaderWorkerSet with image v1, whose pods are ready at once.
func model(name string, replicas, size int32, changes ...func(*lws.LeaderWorkerSet)) *lws.LeaderWorkerSet {
	w := &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: lws.LeaderWorkerSetSpec{
			Replicas:      ptr.To(replicas),
			StartupPolicy: lws.LeaderCreatedStartupPolicy,
			LeaderWorkerTemplate: lws.LeaderWorkerTemplate{
				Size: ptr.To(size),
				WorkerTemplate: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: ptr.To[int64](1),
					Containers:                    []corev1.Container{{Name: "server", Image: "example.com/model:v1"}},
				}},
			},
		},
	}
	for _, change := range changes {
		change(w)
	}
	return w
}

// image sets the image of every container.
func image(tag string) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) {
		for _, t := range templates(w) {
			for i := range t.Spec.Containers {
				t.Spec.Containers[i].Image = "example.com/model:" + tag
			}
		}
	}
}

// annotated sets an annotation on the pods of every group.
func annotated(key, value string) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) {
		for _, t := range templates(w) {
			metav1.SetMetaDataAnnotation(&t.ObjectMeta, key, value)
		}
	}
}

func templates(w *lws.LeaderWorkerSet) []*corev1.PodTemplateSpec { return suite.Templates(w) }

// rolling sets the user's own rolling update configuration. partition < 0: none.
func rolling(maxUnavailable, maxSurge string, partition int32) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) {
		c := &lws.RollingUpdateConfiguration{MaxUnavailable: intstr.Parse(maxUnavailable), MaxSurge: intstr.Parse(maxSurge)}
		if partition >= 0 {
			c.Partition = ptr.To(partition)
		}
		w.Spec.RolloutStrategy = lws.RolloutStrategy{Type: lws.RollingUpdateStrategyType, RollingUpdateConfiguration: c}
	}
}

// deploy creates a LeaderWorkerSet and waits until its groups are ready.
func (e *env) deploy(object *lws.LeaderWorkerSet) *workload {
	e.t.Helper()
	e.eventually("LeaderWorkerSet "+object.Name+" is created", func(ctx context.Context) error {
		_, err := e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace).Create(ctx, object, metav1.CreateOptions{})
		require.False(e.t, apierrors.IsInvalid(err) || apierrors.IsForbidden(err), err)
		return err
	})
	w := e.existing(object.Name)
	w.awaitReady()
	return w
}

// adopt deploys a LeaderWorkerSet and puts it under hold, so that a template change waits for a release.
func (e *env) adopt(object *lws.LeaderWorkerSet) *workload {
	e.t.Helper()
	w := e.deploy(object)
	_, err := w.driver.Adopt(e.t.Context(), &pb.AdoptRequest{Workload: w.ref()})
	require.NoError(e.t, err, "Adopt")
	return w
}

// disown has the driver restore a workload and forget it.
func (e *env) disown(workload *pb.WorkloadRef) {
	e.t.Helper()
	_, err := e.driver.Disown(e.t.Context(), &pb.DisownRequest{Workload: workload})
	require.NoError(e.t, err)
}

// existing returns the workload of a LeaderWorkerSet that exists already.
func (e *env) existing(name string) *workload {
	e.names = append(e.names, name)
	return &workload{env: e, driver: e.driver, name: name}
}

// patchPods changes annotations of the pods of some groups of a LeaderWorkerSet; nil removes one. Pods may be deleted meanwhile.
func (w *workload) patchPods(set string, annotations map[string]any, groups ...int) {
	w.t.Helper()
	patch := asJSON(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	for name, p := range w.podsOf(set) {
		for _, g := range groups {
			if p.Labels[lws.GroupIndexLabelKey] != fmt.Sprint(g) {
				continue
			}
			_, err := w.kube.CoreV1().Pods(w.namespace).Patch(w.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			require.False(w.t, err != nil && !apierrors.IsNotFound(err), err)
		}
	}
}

// withDriver returns the same workload with another driver.
func (w *workload) withDriver(d *driver.Driver) *workload {
	return &workload{env: w.env, driver: d, name: w.name, kind: w.kind}
}

// get reads the object.
func (w *workload) get() *lws.LeaderWorkerSet {
	w.t.Helper()
	return w.getNamed(w.name)
}

func (w *workload) getNamed(name string) *lws.LeaderWorkerSet {
	w.t.Helper()
	object := suite.Get(w.t.Context(), w.t, w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace), name)
	return object
}

// spec returns the spec as JSON, as stored in the API server, including fields that the Go type lacks.
func (w *workload) spec() string {
	w.t.Helper()
	object := suite.GetObject(w.t.Context(), w.t, w.dynamic.Resource(lws.GroupVersion.WithResource("leaderworkersets")).Namespace(w.namespace), w.name)
	return asJSON(object.Object["spec"])
}

// edit changes the object as a user would.
func (w *workload) edit(changes ...func(*lws.LeaderWorkerSet)) {
	w.t.Helper()
	w.editNamed(w.name, changes...)
}

// persistent is a backoff for objects whose status is written many times a second.
var persistent = wait.Backoff{Steps: 30, Duration: 10 * time.Millisecond, Factor: 1.2, Jitter: 0.5}

func (w *workload) editNamed(name string, changes ...func(*lws.LeaderWorkerSet)) {
	w.t.Helper()
	sets := w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace)
	err := retry.RetryOnConflict(persistent, func() error {
		object, err := sets.Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, change := range changes {
			change(object)
		}
		_, err = sets.Update(w.t.Context(), object, metav1.UpdateOptions{FieldManager: "e2e-user"})
		return err
	})
	require.NoError(w.t, err)
}

// scale sets spec.replicas as `kubectl scale` does.
func (w *workload) scale(replicas int32) {
	w.t.Helper()
	require.NoError(w.t, w.tryScale(w.t.Context(), replicas))
}

func (w *workload) tryScale(ctx context.Context, replicas int32) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := w.dynamic.Resource(lws.GroupVersion.WithResource("leaderworkersets")).Namespace(w.namespace).
		Patch(ctx, w.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-scale"}, "scale")
	return err
}

// awaitReady waits until LWS has observed the spec and all its groups are ready.
func (w *workload) awaitReady() {
	w.t.Helper()
	w.eventually("all groups of "+w.name+" are ready", func(ctx context.Context) error {
		object, err := w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := object.Status
		if s.ObservedGeneration != object.Generation || s.ReadyReplicas != replicasOf(object) || s.Replicas != replicasOf(object) {
			return fmt.Errorf("%d of %d groups are ready (%d exist)", s.ReadyReplicas, replicasOf(object), s.Replicas)
		}
		return nil
	})
}

// ref names the workload in requests.
func (w *workload) ref() *pb.WorkloadRef {
	return &pb.WorkloadRef{Namespace: w.namespace, Name: w.name, Kind: w.kind}
}

// policy returns a canary policy with these batches.
func policy(batches ...string) *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: batches}
}

// quarters returns the policy that most tests use.
func quarters() *pb.ReleasePolicy { return policy("25%", "50%", "100%") }

var long = durationpb.New(await.Patience)

// initialize starts a release and waits until it is prepared.
func (w *workload) initialize(id string, p *pb.ReleasePolicy) *pb.InitializeResponse {
	w.t.Helper()
	r, err := w.tryInitialize(id, p)
	require.NoError(w.t, err, "Initialize")
	return r
}

func (w *workload) tryInitialize(id string, p *pb.ReleasePolicy) (*pb.InitializeResponse, error) {
	return w.driver.Initialize(w.t.Context(), &pb.InitializeRequest{
		Workload: w.ref(), ReleaseId: id, Policy: p, Owner: "e2e/" + w.t.Name(), Wait: long,
	})
}

// upgrade requests a batch and waits until it is ready or has failed.
func (w *workload) upgrade(id string, batch int32) *pb.UpgradeBatchResponse {
	w.t.Helper()
	r, err := w.tryUpgrade(id, batch, long)
	require.NoError(w.t, err, "UpgradeBatch")
	return r
}

func (w *workload) tryUpgrade(id string, batch int32, wait *durationpb.Duration) (*pb.UpgradeBatchResponse, error) {
	return w.driver.UpgradeBatch(w.t.Context(), &pb.UpgradeBatchRequest{
		Workload: w.ref(), ReleaseId: id, Target: &pb.UpgradeBatchRequest_Batch{Batch: batch}, Wait: wait,
	})
}

// finalize ends a release and waits until it is done.
func (w *workload) finalize(id string, intent pb.FinalizeIntent) *pb.FinalizeResponse {
	w.t.Helper()
	r, err := w.tryFinalize(id, intent, long)
	require.NoError(w.t, err, "Finalize")
	require.True(w.t, r.GetDone(), "Finalize is not done: %s", show(r.GetContext()))
	return r
}

func (w *workload) tryFinalize(id string, intent pb.FinalizeIntent, wait *durationpb.Duration) (*pb.FinalizeResponse, error) {
	return w.driver.Finalize(w.t.Context(), &pb.FinalizeRequest{Workload: w.ref(), ReleaseId: id, Intent: intent, Wait: wait})
}

// tryContext calls CalculateBatchContext.
func (w *workload) tryContext(ctx context.Context) (*pb.BatchContext, error) {
	r, err := w.driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: w.ref(), IncludeGroups: true})
	return r.GetContext(), err
}

// context is tryContext, and fails the test on an error.
func (w *workload) context() *pb.BatchContext {
	w.t.Helper()
	c, err := w.tryContext(w.t.Context())
	require.NoError(w.t, err, "CalculateBatchContext")
	return c
}

// await waits until the context satisfies check.
func (w *workload) await(what string, check func(*pb.BatchContext) bool) *pb.BatchContext {
	w.t.Helper()
	var last *pb.BatchContext
	w.eventually(what, func(ctx context.Context) error {
		c, err := w.tryContext(ctx)
		if err != nil {
			return err
		}
		if last = c; !check(c) {
			return fmt.Errorf("the context is %s", show(c))
		}
		return nil
	})
	return last
}

func (w *workload) awaitState(states ...pb.State) *pb.BatchContext {
	w.t.Helper()
	return w.await(fmt.Sprint("state ", states), func(c *pb.BatchContext) bool { return slices.Contains(states, c.GetState()) })
}

// stablePods returns the pods of the workload's own groups, by name.
func (w *workload) stablePods() map[string]corev1.Pod {
	w.t.Helper()
	return w.podsOf(w.name)
}

// groupsWith counts the workload's own groups that run an image.
func (w *workload) groupsWith(tag string) int {
	w.t.Helper()
	n := 0
	for _, p := range w.stablePods() {
		if p.Labels[lws.WorkerIndexLabelKey] == "0" && strings.HasSuffix(p.Spec.Containers[0].Image, ":"+tag) {
			n++
		}
	}
	return n
}

func (w *workload) podsOf(set string) map[string]corev1.Pod {
	w.t.Helper()
	list := suite.List(w.t, w.kube.CoreV1().Pods(w.namespace), metav1.ListOptions{LabelSelector: lws.SetNameLabelKey + "=" + set})
	pods := map[string]corev1.Pod{}
	for _, p := range list.Items {
		pods[p.Name] = p
	}
	return pods
}

// sameGroups fails if a pod was replaced, deleted or created in between.
func (w *workload) sameGroups(before map[string]corev1.Pod) {
	w.t.Helper()
	after := w.stablePods()
	for name, p := range before {
		now, ok := after[name]
		assert.True(w.t, ok && now.UID == p.UID, "pod %s was restarted", name)
	}
	assert.Equal(w.t, len(after), len(before), "%d pods before, %d after", len(before), len(after))
}

// sameGroupsBelow fails if a pod of a group below the index was replaced or deleted.
func (w *workload) sameGroupsBelow(before map[string]corev1.Pod, index int) {
	w.t.Helper()
	after := w.stablePods()
	for name, p := range before {
		group, err := strconv.Atoi(p.Labels[lws.GroupIndexLabelKey])
		now, ok := after[name]
		assert.False(w.t, err != nil || group < index && (!ok || now.UID != p.UID), "pod %s of group %d was restarted (%v)", name, group, err)
	}
}

// mustBeIdle fails unless the workload is adopted and under hold, and everything that its releases added is deleted.
func (w *workload) mustBeIdle() {
	w.t.Helper()
	object := w.get()
	assert.NotEmpty(w.t, object.Annotations[recordAnnotation], "the record is missing, although the workload is adopted")
	assert.True(w.t, isHold(object.Spec.RolloutStrategy.RollingUpdateConfiguration),
		"not held after the release: %s", asJSON(object.Spec.RolloutStrategy))
	assert.False(w.t, slices.Contains(object.Finalizers, finalizer), "the driver's finalizer is on the user's workload")
	w.mustHaveNoCanary()
}

// mustHaveNoCanary fails unless everything that releases added is deleted. The LeaderWorkerSet must be deleted already; LWS may
// just have created objects for a pod that was being deleted, which are garbage collected.
func (w *workload) mustHaveNoCanary() {
	w.t.Helper()
	sets, err := w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace).List(w.t.Context(), metav1.ListOptions{LabelSelector: stableLabel + "=" + w.name})
	if err != nil || len(sets.Items) > 0 {
		w.t.Errorf("%d canaries are left (%v)", len(sets.Items), err)
	}
	w.eventually("the canary's objects are deleted", w.leftovers)
}

// leftovers returns an error that names objects left by the workload's releases, and by the workload itself if it is deleted.
func (w *workload) leftovers(ctx context.Context) error {
	sets, err1 := w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace).List(ctx, metav1.ListOptions{})
	stateful, err2 := w.kube.AppsV1().StatefulSets(w.namespace).List(ctx, metav1.ListOptions{})
	pods, err3 := w.kube.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	var left []error
	for i := range sets.Items {
		if s := &sets.Items[i]; s.Labels[stableLabel] == w.name {
			left = append(left, fmt.Errorf("LeaderWorkerSet %s is left", s.Name))
		}
	}
	isSet := func(name string) bool {
		return slices.ContainsFunc(sets.Items, func(s lws.LeaderWorkerSet) bool { return s.Name == name && s.Labels[roleLabel] == "" })
	}
	of := func(kind, name string, labels map[string]string) {
		if set := labels[lws.SetNameLabelKey]; strings.HasPrefix(set, w.name) && !isSet(set) {
			left = append(left, fmt.Errorf("%s %s of %s is left", kind, name, set))
		}
	}
	for i := range stateful.Items {
		of("StatefulSet", stateful.Items[i].Name, stateful.Items[i].Labels)
	}
	for i := range pods.Items {
		of("pod", pods.Items[i].Name, pods.Items[i].Labels)
	}
	return errors.Join(left...)
}

// mustRun fails unless every group runs the image.
func (w *workload) mustRun(tag string) {
	w.t.Helper()
	for _, p := range w.stablePods() {
		got := p.Spec.Containers[0].Image
		assert.Equal(w.t, "example.com/model:"+tag, got, "pod %s runs %s, want tag %s", p.Name, got, tag)
	}
}

// mustFail fails unless err has this reason and its message contains all words.
func mustFail(t testing.TB, err error, reason pb.ErrorReason, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %v", reason)
		return
	}
	got := plugin.Reason(err)
	assert.Equal(t, reason, got, "reason %v, want %v: %v", got, reason, err)
	for _, word := range words {
		assert.ErrorContains(t, err, word)
	}
}

func isHold(c *lws.RollingUpdateConfiguration) bool {
	return c != nil && ptr.Deref(c.Partition, 0) == holdPartition && c.MaxSurge == intstr.FromInt32(0) && c.MaxUnavailable == intstr.FromInt32(1)
}

func replicasOf(w *lws.LeaderWorkerSet) int32 {
	if w == nil {
		return 0
	}
	return ptr.Deref(w.Spec.Replicas, 1)
}

func revisionOf(p *corev1.Pod) string { return p.Labels[lws.RevisionKey] }

func podReady(p *corev1.Pod) bool { return grouptags.Ready(p) }

func asJSON(v any) string { return text.JSON(v) }

func show(c *pb.BatchContext) string { return prototext.MarshalOptions{}.Format(c) }

func seconds(n float64) *durationpb.Duration {
	return durationpb.New(time.Duration(n * float64(time.Second)))
}

const (
	completed  = pb.State_STATE_COMPLETED
	rolledBack = pb.State_STATE_ROLLED_BACK
)

// startBatch requests a batch without waiting for it.
func (w *workload) startBatch(id string, batch int32) {
	w.t.Helper()
	_, err := w.tryUpgrade(id, batch, nil)
	require.NoError(w.t, err)
}

// startFinalize requests the end of a release without waiting for it.
func (w *workload) startFinalize(id string, intent pb.FinalizeIntent) {
	w.t.Helper()
	_, err := w.tryFinalize(id, intent, nil)
	require.NoError(w.t, err)
}

// errNotYet is the error of conditions without further details.
var errNotYet = errors.New("not yet")

func isNotYet(err error) bool { return errors.Is(err, errNotYet) }

// record returns the release record in the cluster.
func (w *workload) record() *record { return recordOf(w.get()) }

// awaitObject waits for a condition on the cluster's objects rather than the driver's answers.
func (w *workload) awaitObject(what string, check func() bool) {
	w.t.Helper()
	w.eventually(what, func(context.Context) error {
		if !check() {
			return fmt.Errorf("not yet: %s", asJSON(w.record()))
		}
		return nil
	})
}

// promoteUntil starts the promotion and returns once this many groups are promoted.
func (w *workload) promoteUntil(id string, groups int32) {
	w.t.Helper()
	_, err := w.tryFinalize(id, promote, nil)
	require.NoError(w.t, err)
	w.await("some groups are promoted", func(c *pb.BatchContext) bool {
		return c.GetState() == pb.State_STATE_PROMOTING && c.GetUpdatedReady() >= groups
	})
}
