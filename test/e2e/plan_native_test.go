// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

const (
	// pollNative is the interval of reading the caches.
	pollNative = 20 * time.Millisecond
	// nativeSlots is the number of concurrent updates. The controllers serve other tests, too.
	nativeSlots = 3
)

// The forecasts' model of LWS's rolling update matches the real controllers at each stage: after each group that becomes ready, the
// leader StatefulSet has the same partition and replicas, and the groups are at the same revisions.
//
// Proves: Plan in each style; its model of LWS's update, group by group.
func TestPlanNative(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	paces := [][2]string{{"25%", "50%"}, {"100%", "0"}, {"1", "0"}, {"0", "1"}, {"2", "0"}, {"1", "1"}, {"2", "2"}, {"0", "3"}}
	orders := [][]int{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, {4, 5, 3, 1, 0, 2, 7, 6}}
	factory := informers.NewSharedInformerFactoryWithOptions(e.kube, 0, informers.WithNamespace(e.namespace))
	cached := nativeCaches{sets: factory.Apps().V1().StatefulSets().Lister(), pods: factory.Core().V1().Pods().Lister()}
	factory.Start(t.Context().Done())
	for kind, synced := range factory.WaitForCacheSync(t.Context().Done()) {
		if !synced {
			t.Fatalf("the cache of %s has not synced", kind)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, nativeSlots)
	updates, stages := 0, 0
	seen := map[string]bool{} // skips updates whose settings mean the same numbers
	for _, replicas := range []int32{1, 2, 4, 5} {
		for i, pace := range paces {
			for j, order := range orders {
				size := int32(1 + j%2) // groups with and without workers
				object := model(fmt.Sprintf("n%d-%d-%d", replicas, i, j), replicas, size, rolling(pace[0], pace[1], 0))
				limits := native.LimitsOf(*object.Spec.RolloutStrategy.RollingUpdateConfiguration, int(replicas))
				if limits.Batch() == 0 {
					continue // LWS's webhook refuses it
				}
				groups := slices.DeleteFunc(slices.Clone(order), func(g int) bool { return g >= limits.Replicas+limits.MaxSurge })
				key := fmt.Sprint(limits, size, groups)
				if seen[key] {
					continue
				}
				seen[key] = true
				wg.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					n, err := (&nativeUpdate{env: e, cached: cached, object: object, order: order}).run(t.Context())
					mu.Lock()
					defer mu.Unlock()
					updates, stages = updates+1, stages+n
					if err != nil {
						t.Errorf("%s: %d replicas of %d pods, maxUnavailable %s, maxSurge %s, order %v: %v", object.Name, replicas, size, pace[0], pace[1], order, err)
					}
				})
			}
		}
	}
	wg.Wait()
	t.Logf("figures: %d native updates, %d stages compared with the model", updates, stages)
}

// nativeCaches are informers' caches of the namespace, so that polling does not load the API server.
type nativeCaches struct {
	sets appslisters.StatefulSetLister
	pods corelisters.PodLister
}

// nativeUpdate is a LeaderWorkerSet under LWS's own rolling update, and its model.
type nativeUpdate struct {
	*env
	cached nativeCaches
	object *lws.LeaderWorkerSet
	order  []int

	set *native.Set
	old string // the revision before the update
}

// run updates both and returns the number of stages at which they matched.
func (u *nativeUpdate) run(ctx context.Context) (stages int, err error) {
	replicas := int(ptr.Deref(u.object.Spec.Replicas, 0))
	if _, err := u.lws.LeaderworkersetV1().LeaderWorkerSets(u.namespace).Create(ctx, u.object, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	u.set = native.NewSet(replicas, *u.object.Spec.RolloutStrategy.RollingUpdateConfiguration, "old")
	if err := u.agree(ctx); err != nil {
		return 0, fmt.Errorf("at rest: %w", err)
	}
	patch := []byte(`{"spec":{"leaderWorkerTemplate":{"workerTemplate":{"metadata":{"annotations":{"` + cluster.AnnotationBehavior + `":"` + cluster.BehaviorNeverReady + `"}}}}}}`)
	if _, err := u.lws.LeaderworkersetV1().LeaderWorkerSets(u.namespace).Patch(ctx, u.object.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return 0, err
	}
	u.set.Template = "new"
	updated := true
	for u.set.Reconcile(); ; u.set.Reconcile() {
		if err := u.agree(ctx); err != nil {
			return stages, fmt.Errorf("stage %d: %w", stages, err)
		}
		stages++
		unready := u.set.Unready()
		if len(unready) == 0 {
			break
		}
		next := slices.IndexFunc(u.order, func(i int) bool { return slices.Contains(unready, i) })
		u.set.Groups[u.order[next]].Ready = true
	}
	for _, g := range u.set.Groups {
		updated = updated && g.Revision == u.set.Template
	}
	if !updated || len(u.set.Groups) != u.set.Replicas {
		return stages, fmt.Errorf("the update ended as %q", u.expected())
	}
	return stages, u.lws.LeaderworkersetV1().LeaderWorkerSets(u.namespace).Delete(ctx, u.object.Name, metav1.DeleteOptions{})
}

// agree waits until the cluster matches the model.
func (u *nativeUpdate) agree(ctx context.Context) error {
	want, got := u.expected(), ""
	err := wait.PollUntilContextTimeout(ctx, pollNative, await.Patience, true, func(ctx context.Context) (bool, error) {
		var err error
		if got, err = u.actual(); err == nil && got == want {
			return true, nil
		}
		return false, u.makeReady(ctx)
	})
	if err != nil {
		return fmt.Errorf("%w; (-model +cluster) %s", err, cmp.Diff(want, got))
	}
	return nil
}

// expected returns the model's state as one line.
func (u *nativeUpdate) expected() string {
	groups := make([]string, 0, len(u.set.Groups))
	for i, g := range u.set.Groups {
		groups = append(groups, describeGroup(i, g.Revision, g.Ready))
	}
	return describeUpdate(u.set.Partition(), u.set.LeaderReplicas(), groups)
}

func describeGroup(index int, revision string, ready bool) string {
	return fmt.Sprintf("%d:%s:%t", index, revision, ready)
}

func describeUpdate(partition, replicas int, groups []string) string {
	slices.Sort(groups)
	return fmt.Sprintf("partition %d replicas %d groups %s", partition, replicas, strings.Join(groups, " "))
}

// actual returns the cluster's state as one line, or an error while a group lacks pods or has a pod that is being deleted.
func (u *nativeUpdate) actual() (string, error) {
	leaders, err := u.cached.sets.StatefulSets(u.namespace).Get(u.object.Name)
	if err != nil {
		return "", err
	}
	pods, err := u.pods()
	if err != nil {
		return "", err
	}
	size := int(ptr.Deref(u.object.Spec.LeaderWorkerTemplate.Size, 1))
	var groups []string
	for index, members := range pods {
		ready, revisions := true, map[string]bool{}
		for _, p := range members {
			if p.DeletionTimestamp != nil {
				return "", fmt.Errorf("%s is being deleted", p.Name)
			}
			if u.old == "" {
				u.old = revisionOf(p)
			}
			ready = ready && podReady(p)
			revisions[revisionOf(p)] = true
		}
		if len(members) != size || len(revisions) != 1 {
			return "", fmt.Errorf("group %d has %d pods at %d revisions", index, len(members), len(revisions))
		}
		revision := "new"
		if revisions[u.old] {
			revision = "old"
		}
		groups = append(groups, describeGroup(index, revision, ready))
	}
	return describeUpdate(int(*leaders.Spec.UpdateStrategy.RollingUpdate.Partition), int(*leaders.Spec.Replicas), groups), nil
}

// pods returns the set's pods by group, leaders last.
func (u *nativeUpdate) pods() (map[int][]*corev1.Pod, error) {
	pods, err := u.cached.pods.Pods(u.namespace).List(labels.SelectorFromSet(labels.Set{lws.SetNameLabelKey: u.object.Name}))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return strings.Compare(b.Labels[lws.WorkerIndexLabelKey], a.Labels[lws.WorkerIndexLabelKey])
	})
	groups := map[int][]*corev1.Pod{}
	for _, p := range pods {
		index, err := strconv.Atoi(p.Labels[lws.GroupIndexLabelKey])
		if err != nil {
			return nil, err
		}
		groups[index] = append(groups[index], p)
	}
	return groups, nil
}

// makeReady heals the pods of groups that are ready in the model, leaders last: a StatefulSet continues once the leader is ready.
// LWS may recreate a new group once more when it observes the deletion of the former pod, so callers repeat it.
func (u *nativeUpdate) makeReady(ctx context.Context) error {
	pods, err := u.pods()
	if err != nil {
		return err
	}
	for index, g := range u.set.Groups {
		for _, p := range pods[index] {
			if !g.Ready || podReady(p) {
				continue
			}
			if p.Annotations[cluster.AnnotationBehavior] == "" {
				break // healed, not ready yet
			}
			patch := []byte(`{"metadata":{"annotations":{"` + cluster.AnnotationBehavior + `":null}}}`)
			_, err := u.kube.CoreV1().Pods(u.namespace).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			break // one pod after the other
		}
	}
	return nil
}
