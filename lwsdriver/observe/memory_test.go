// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
)

// maxPerPod is how many bytes of heap a pod may take in the caches, its part of a group included: 50,000 pods then take 40 MB of the
// 150 MB that the driver may have with them.
const maxPerPod = 800

// TestMemoryPerPod feeds the caches with as many pods as a large cluster has, and measures the heap that they keep.
func TestMemoryPerPod(t *testing.T) {
	const pods, size, groups = 50_000, 8, 100 // of a workload
	b := newGroupFixture(t)
	before := heap()
	for i := range pods {
		set := fmt.Sprintf("large-language-model-%d", i/size/groups)
		p := lwstest.Pod("vllm-0", func(p *corev1.Pod) {
			group, worker := i/size%groups, i%size
			p.Namespace, p.Name = "inference", fmt.Sprintf("%s-%d-%d", set, group, worker)
			p.UID, p.ResourceVersion = types.UID(fmt.Sprintf("6fbd2c1e-0000-4000-8000-%012d", i)), fmt.Sprint(1_000_000_000+i)
			p.Labels[lws.SetNameLabelKey], p.Labels[lws.GroupIndexLabelKey] = set, fmt.Sprint(group)
			p.Labels[lws.WorkerIndexLabelKey], p.Labels[lws.RevisionKey] = fmt.Sprint(worker), "7d4f5b6c89"
			p.Labels["a"], p.Annotations["b"] = strings.Repeat("x", 63), strings.Repeat("y", 10_000)
			p.Status.PodIP = "10.244.100.200"
			if i%10 == 0 {
				lwstest.Waiting("ImagePullBackOff", strings.Repeat("z", 2000))(p)
			}
		})
		v := NewPod(p)
		require.NoError(t, b.store.Add(v))
		b.Invalidate(v.Workload(), v.Group)
	}
	cached := heap() - before
	for i := range pods / size / groups {
		key := types.NamespacedName{Namespace: "inference", Name: fmt.Sprintf("large-language-model-%d", i)}
		require.Len(t, b.groupsOf(key, groups, size, nil, lwstest.Noon, 0), groups, "groups of %s", key)
	}
	observed := heap() - before
	t.Logf("%d pods: %d bytes each, %d once their groups were observed", pods, cached/pods, observed/pods)
	assert.LessOrEqual(t, observed/pods, uint64(maxPerPod), "a pod takes %d bytes of the heap, want at most %d", observed/pods, maxPerPod)
	runtime.KeepAlive(b)
}

// heap returns the bytes that are live after a garbage collection.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// large returns metadata of about a MiB, as any user may write it.
func large(name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{}, Annotations: map[string]string{"a": strings.Repeat("x", 250<<10)}}
	for i := range 8 << 10 {
		m.Labels[fmt.Sprint("label-", i)] = strings.Repeat("y", 63)
	}
	return m
}

// What a user may make large is not kept. A PodDisruptionBudget whose rest is large is named instead.
func TestMemoryOfNearbyObjects(t *testing.T) {
	const objects, most = 40, 16 << 10
	wide := func() *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "a", Operator: metav1.LabelSelectorOpIn, Values: strings.Fields(strings.Repeat(strings.Repeat("z", 63)+" ", 16<<10)),
		}}}
	}
	one := intstr.FromInt32(1)
	// The controller of StatefulSets copies the labels and annotations of theirs, and who may edit these writes no other revision.
	foreign := func(name string) metav1.Object {
		w, wide := lwstest.WithImage(strings.Repeat("x", 250<<10)), strings.Repeat("y", 250<<10)
		cr, err := history.Object(w, plan.Entry{Revision: name, EndMessage: wide}, record.TemplateOf(w))
		require.NoError(t, err)
		cr.Labels[lws.SetNameLabelKey], cr.OwnerReferences[0].APIVersion, cr.OwnerReferences[0].Kind = "vllm", "apps/v1", "StatefulSet"
		return cr
	}
	// A user may write any of KEDA's annotations, notes, owners and targets; the API server limits none of their names.
	wideScaler := func(name string) metav1.ObjectMeta {
		m := large(name)
		for _, key := range []string{"paused", "paused-replicas", "paused-scale-in", "paused-scale-out", "other"} {
			m.Annotations["autoscaling.keda.sh/"+key] = strings.Repeat("y", 50<<10)
		}
		m.Annotations[autoscaler.NoteAnnotation] = strings.Repeat("z", 50<<10)
		for i := range 50 {
			m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{Name: strings.Repeat("o", 5<<10), Controller: new(i == 0)})
		}
		return m
	}
	for name, test := range map[string]struct {
		make      func(name string) metav1.Object
		transform cache.TransformFunc
	}{
		"HPA": {func(name string) metav1.Object {
			h := lwstest.HPA(strings.Repeat("x", 50<<10), lwstest.HeldFor("vllm"))
			h.ObjectMeta = wideScaler(name)
			h.Spec.Behavior.ScaleUp.Policies = make([]autoscalingv2.HPAScalingPolicy, 30<<10)
			return h
		}, informer.Transform(autoscaler.OfHPA)},
		"ScaledObject": {func(name string) metav1.Object {
			m := wideScaler(name)
			o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"scaleTargetRef": map[string]any{
				"apiVersion": lws.GroupVersion.String(), "kind": "LeaderWorkerSet", "name": strings.Repeat("x", 50<<10),
			}}}}
			o.SetName(name)
			o.SetAnnotations(m.Annotations)
			o.SetOwnerReferences(m.OwnerReferences)
			return o
		}, informer.Transform(autoscaler.OfScaledObject)},
		"metadata of a budget": {func(name string) metav1.Object {
			return &policyv1.PodDisruptionBudget{ObjectMeta: large(name), Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one}}
		}, informer.Transform(stripBudget)},
		"selector of a budget": {func(name string) metav1.Object {
			return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: wide()}}
		}, informer.Transform(stripBudget)},
		"metadata of a quota": {func(name string) metav1.Object {
			return &corev1.ResourceQuota{ObjectMeta: large(name)}
		}, informer.Transform(stripMetadata)},
		"revision of a StatefulSet":                 {foreign, informer.Transform(stripRevision)},
		"revision of a StatefulSet like of history": {foreign, informer.Transform(stripHistoryRevision)},
	} {
		var kept []any
		before := heap()
		for i := range objects {
			o, err := test.transform(test.make(fmt.Sprint(i)))
			require.NoError(t, err)
			kept = append(kept, o)
		}
		each := (heap() - before) / objects
		t.Logf("%s: %d bytes each", name, each)
		assert.LessOrEqual(t, each, uint64(most), "%s: an object takes %d bytes of the heap, want at most %d", name, each, most)
		runtime.KeepAlive(kept)
	}
}
