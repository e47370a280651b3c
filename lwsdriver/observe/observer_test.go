// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A record that can't be read is not the end: its error says how to get out, hold included.
func TestInvalidRecordNamesRemedy(t *testing.T) {
	b := newFixture(t, lwstest.StableWorkload()) // its record is "{}"
	_, err := b.Observe(lwstest.VLLM)
	got := drivererr.Reason(err)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_RECORD_INVALID, got, "reason %s, want RECORD_INVALID", got)
	lwstest.ErrorContains(t, err, record.RecordAnnotation, "Restore", "remove", "partition 1000000", "Adopt", "Disown")
	empty := lwstest.StableWorkload()
	empty.Annotations[record.RecordAnnotation] = ""
	_, err = newFixture(t, empty).Observe(lwstest.VLLM)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_RECORD_INVALID, drivererr.Reason(err), "of an empty record: %v", err)
}

// A recorded deadline is bounded as well: every editor of the workload can write the record.
func TestRecordedDeadlineIsBounded(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	rec, err := record.DecodeRecord(stable.Annotations[record.RecordAnnotation])
	require.NoError(t, err)
	rec.Release.Policy, err = record.EncodePolicy(&pb.ReleasePolicy{
		Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}, ProgressDeadline: durationpb.New(1000 * time.Hour),
	})
	require.NoError(t, err)
	b := newFixture(t, lwstest.WithRecord(t, stable, *rec))
	b.config.Limits.ProgressDeadline = 24 * time.Hour
	got := b.look().Policy.ProgressDeadline
	assert.Equal(t, 24*time.Hour, got, "the deadline is %s, want that of the driver", got)
}

// A record that came with a copied manifest holds the copy, and releases nothing.
func TestCopiedRecord(t *testing.T) {
	stable := lwstest.InPhase(t, record.CleaningUp)
	rec, err := record.DecodeRecord(stable.Annotations[record.RecordAnnotation])
	require.NoError(t, err)
	for uid, want := range map[types.UID]bool{stable.UID: true, "": true, "other": false} {
		rec.UID = uid
		stable.Annotations[record.RecordAnnotation], err = rec.Encode()
		require.NoError(t, err)
		s := newFixture(t, stable).look()
		assert.True(t, s.Record != nil && (s.Record.Release != nil) == want && record.SameRolling(s.Record.Saved, rec.Saved),
			"with UID %q the record is %+v", uid, s.Record)
	}
}

func TestCheckWorkload(t *testing.T) {
	assert.NoError(t, plan.CheckWorkload(plan.Observation{Key: lwstest.VLLM, Identity: newFixture(t).Caches.identity(lwstest.StableWorkload())}),
		"a user's own")
	for _, tt := range []struct {
		name   string
		change func(*lws.LeaderWorkerSet)
		want   pb.ErrorReason
		says   []string
	}{
		{
			"copied labels", func(w *lws.LeaderWorkerSet) { w.Name, w.OwnerReferences = "mine", nil },
			pb.ErrorReason_ERROR_REASON_NAME_TAKEN, []string{"remove", record.RoleLabel, record.StableLabel, record.RevisionLabel},
		},
		{
			"copied owner", func(w *lws.LeaderWorkerSet) { w.Name = "mine" },
			pb.ErrorReason_ERROR_REASON_NAME_TAKEN, []string{"remove", "ownerReferences"},
		},
		{
			"one label", func(w *lws.LeaderWorkerSet) {
				w.OwnerReferences, w.Labels = nil, map[string]string{record.RoleLabel: ""}
			},
			pb.ErrorReason_ERROR_REASON_NAME_TAKEN, []string{"remove", record.RoleLabel},
		},
		{
			"added", func(*lws.LeaderWorkerSet) {},
			pb.ErrorReason_ERROR_REASON_NAME_TAKEN, []string{"was added by the release", "vllm"},
		},
		{
			"owned", func(w *lws.LeaderWorkerSet) { w.Labels = nil },
			pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER, []string{"vllm"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := lwstest.Canary(t, lwstest.StableWorkload())
			tt.change(w)
			err := plan.CheckWorkload(plan.Observation{Key: KeyOf(w), Identity: newFixture(t).Caches.identity(w)})
			got := drivererr.Reason(err)
			assert.Equal(t, tt.want, got, "reason %s, want %s", got, tt.want)
			lwstest.ErrorContains(t, err, tt.says...)
		})
	}
}

// What an adoption would lose is refused.
func TestCheckAdopts(t *testing.T) {
	adopt := &pb.ReleasePolicy{BlueGreen: &pb.BlueGreenPolicy{Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT}}
	for name, tt := range map[string]struct {
		policy *pb.ReleasePolicy
		change func(*lws.LeaderWorkerSet)
		want   pb.ErrorReason
	}{
		"nothing":  {adopt, func(*lws.LeaderWorkerSet) {}, 0},
		"in place": {&pb.ReleasePolicy{}, func(w *lws.LeaderWorkerSet) { w.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "a"} }, 0},
		"Flux": {
			adopt, func(w *lws.LeaderWorkerSet) { w.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "a"} },
			pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER,
		},
		"Argo CD": {
			adopt, func(w *lws.LeaderWorkerSet) { w.Annotations["argocd.argoproj.io/tracking-id"] = "a" }, pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER,
		},
		"volumes": {adopt, func(w *lws.LeaderWorkerSet) {
			w.Spec.LeaderWorkerTemplate.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{}}
		}, pb.ErrorReason_ERROR_REASON_UNSUPPORTED},
	} {
		w := lwstest.Unrecorded()
		w.Labels, w.Annotations = nil, map[string]string{}
		tt.change(w)
		o := plan.Observation{Key: KeyOf(w), Identity: newFixture(t).Caches.identity(w)}
		refused := pb.ErrorReason_ERROR_REASON_UNSPECIFIED
		for _, err := range (plan.Begin{Policy: tt.policy}).Obstacles(o) {
			if reason := drivererr.Reason(err); reason == pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER || reason == pb.ErrorReason_ERROR_REASON_UNSUPPORTED {
				refused = reason
			}
		}
		assert.Equal(t, tt.want, refused, "%s: %v", name, refused)
	}
}

// A look that was under way while the workload went keeps nothing either.
func TestDigestOfDeletedWorkloadIsForgotten(t *testing.T) {
	b := newFixture(t)
	_, err := b.digest(lwstest.StableWorkload())
	require.NoError(t, err)
	assert.Zero(t, b.remembered(), "the digest of a workload that is not there is kept")
}

// What was withheld until a cache is filled, or confirmed again, is decided again: of each workload with a record, and of one whose record another client
// has removed, by what its release added or what is remembered of it.
func TestFilledCacheConcernsReleases(t *testing.T) {
	unrecorded, inPlace := lwstest.Unrecorded(), lwstest.RoutedInPlace(t, lwstest.Unchanged)
	for name, tt := range map[string]struct {
		objects []*lws.LeaderWorkerSet
		want    bool
	}{
		"record":         {[]*lws.LeaderWorkerSet{lwstest.InPhase(t, record.Progressing)}, true},
		"never adopted":  {[]*lws.LeaderWorkerSet{unrecorded}, false},
		"added":          {[]*lws.LeaderWorkerSet{unrecorded, lwstest.RoutedCanary(t, unrecorded)}, true},
		"added, deleted": {[]*lws.LeaderWorkerSet{lwstest.RoutedCanary(t, unrecorded)}, true},
		"in place":       {[]*lws.LeaderWorkerSet{inPlace}, true},
	} {
		b := newFixture(t, tt.objects...)
		if name == "in place" {
			b.look()
			b.cache(unrecorded)
		}
		var changed []types.NamespacedName
		b.config.Changed = func(key types.NamespacedName) { changed = append(changed, key) }
		b.allChanged()
		assert.Equal(t, tt.want, slices.Contains(changed, lwstest.VLLM), "%s: changed are %v", name, changed)
	}
}

// A cache that is filled late and stays empty has no event; waiters are signalled anyway.
func TestEmptyCacheFilledLate(t *testing.T) {
	b := newFixture(t, lwstest.Unrecorded())
	var readable atomic.Bool
	fakes.React(&b.Core.Fake, "list", "controllerrevisions", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list, ok := action.(clienttesting.ListAction)
		if ok && !readable.Load() && strings.Contains(list.GetListRestrictions().Labels.String(), record.RoleSnapshot) {
			return true, nil, errors.New("not now")
		}
		return false, nil, nil
	})
	b.run()
	b.eventually("the other caches are filled", b.Caches.Synced)
	known := make(chan error, 1)
	go func() { known <- b.Changes.Await(t.Context(), b.History.Synced, lwstest.VLLM) }()
	readable.Store(true)
	select {
	case err := <-known:
		assert.NoError(t, err)
	case <-time.After(await.Patience):
		t.Error("waiters are not signalled")
	}
}

// Nothing is remembered of a workload and of what was added to it once they and their pods are deleted, in any order
// they go, and although they are looked at meanwhile.
func TestDeletedWorkloadIsForgotten(t *testing.T) {
	for _, tt := range []struct {
		name      string
		podsFirst bool
	}{{"pods last", false}, {"pods first", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stable := lwstest.InPhase(t, record.Progressing)
			b := newFixture(t, stable, lwstest.Canary(t, stable))
			b.run()
			b.eventually("the caches are filled", b.Caches.Synced)
			pods := b.Core.CoreV1().Pods(lwstest.VLLM.Namespace)
			names := []string{"vllm-1", "vllm-1-1", "vllm-new-1"}
			for _, name := range names {
				pod := lwstest.Pod(name, func(p *corev1.Pod) {
					if strings.HasPrefix(name, "vllm-new") {
						p.Labels[lws.SetNameLabelKey] = "vllm-new"
					}
				})
				_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
				require.NoError(t, err)
			}
			b.eventually("the pods are seen", func() bool { return len(b.Caches.Pods.GetIndexer().List()) == len(names) })
			b.eventually("what exists is remembered", func() bool { b.look(); return b.remembered() > 0 })
			var looking sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			looking.Go(func() {
				for ctx.Err() == nil {
					changed, stop := b.Changes.Subscribe(lwstest.VLLM)
					if _, err := b.Observe(lwstest.VLLM); err != nil {
						b.ObserveGone(lwstest.VLLM)
					}
					select {
					case <-changed:
					case <-ctx.Done():
					}
					stop()
				}
			})
			steps := []func(){
				func() {
					for _, name := range []string{"vllm", "vllm-new"} {
						err := b.Sets.Tracker().Delete(lws.GroupVersion.WithResource("leaderworkersets"), lwstest.VLLM.Namespace, name)
						require.NoError(t, err)
					}
					b.eventually("the workloads are deleted", func() bool { return len(b.Caches.Workloads.GetIndexer().List()) == 0 })
				},
				func() {
					for _, name := range names {
						require.NoError(t, pods.Delete(t.Context(), name, metav1.DeleteOptions{}))
					}
					b.eventually("the pods are deleted", func() bool { return len(b.Caches.Pods.GetIndexer().List()) == 0 })
				},
			}
			if tt.podsFirst {
				slices.Reverse(steps)
			}
			for _, step := range steps {
				step()
			}
			cancel()
			looking.Wait()
			b.eventually("all is forgotten", func() bool { return b.remembered() == 0 })
		})
	}
}

// remembered counts what the observer keeps per workload.
func (b *fixture) remembered() int {
	b.Caches.Groups.mu.Lock()
	defer b.Caches.Groups.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.Caches.Groups.sets) + len(b.known) + b.Changes.Len()
}

func TestObservationHasWallClockOnly(t *testing.T) {
	t.Parallel()
	b := newFixture(t, lwstest.InPhase(t, record.Progressing))
	b.config.Now = time.Now
	s := b.look()
	assert.Equal(t, s.Now.Round(0), s.Now, "%v has a reading of the monotonic clock, which is lost in a recording", s.Now)
}

// The caches count as filled only when every group is known: the handler of pods runs after their cache is filled.
func TestSyncedKnowsGroups(t *testing.T) {
	core := fake.NewClientset(lwstest.Pod("vllm-0"), lwstest.Pod("vllm-0-1"))
	b := newFixtureOn(t, core, lwstest.NoRoutes(), lwstest.Unrecorded())
	handling, resume := make(chan types.NamespacedName), make(chan struct{})
	b.config.Changed = func(key types.NamespacedName) {
		select {
		case handling <- key:
			<-resume
		case <-resume:
		}
	}
	b.run()
	<-handling
	b.eventually("the caches of pods, workloads and revisions are filled", func() bool {
		return b.Caches.Pods.HasSynced() && b.Caches.Workloads.HasSynced() && b.Caches.revisions.HasSynced()
	})
	assert.False(t, b.Caches.Synced(), "filled, although an event is still being handled")
	close(resume)
	b.eventually("the caches are filled", b.Caches.Synced)
	groups := b.look().Stable.Groups
	assert.True(t, len(groups) == 1 && groups[0].ReadyPods == 2, "groups %+v", groups)
}

// An edit that makes an object cease to be a workload's is a change of that workload.
func TestWorkloadLosesObject(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*testing.T, *fixture, *lws.LeaderWorkerSet)
	}{
		{"canary", func(t *testing.T, b *fixture, canary *lws.LeaderWorkerSet) {
			canary.Labels = nil
			require.NoError(t, b.Sets.Tracker().Update(lws.GroupVersion.WithResource("leaderworkersets"), canary, canary.Namespace))
		}},
		{"group", func(t *testing.T, b *fixture, _ *lws.LeaderWorkerSet) {
			pod := lwstest.Pod("vllm-1", func(p *corev1.Pod) { p.Labels[lws.SetNameLabelKey] = "other" })
			_, err := b.Core.CoreV1().Pods(pod.Namespace).Update(t.Context(), pod, metav1.UpdateOptions{})
			require.NoError(t, err)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stable := lwstest.InPhase(t, record.Progressing)
			canary := lwstest.Canary(t, stable)
			b := newFixtureOn(t, fake.NewClientset(lwstest.Pod("vllm-1")), lwstest.NoRoutes(), stable, canary)
			b.runSynced()
			changed, stop := b.Changes.Subscribe(lwstest.VLLM)
			defer stop()
			tt.edit(t, b, canary.DeepCopy())
			select {
			case <-changed:
			case <-time.After(await.Patience):
				t.Error("no change of the workload")
			}
		})
	}
}

// A watch that was interrupted shows a workload that was deleted and recreated as one that changed.
func TestRecreatedWorkloadIsForgotten(t *testing.T) {
	w := lwstest.InPhase(t, record.Progressing)
	b := newFixture(t, w)
	var forgotten atomic.Bool
	b.config.Deleted = func(types.NamespacedName) { forgotten.Store(true) }
	b.runSynced()
	next := w.DeepCopy()
	next.UID = "recreated"
	require.NoError(t, b.Sets.Tracker().Update(lws.GroupVersion.WithResource("leaderworkersets"), next, next.Namespace))
	b.eventually("what is remembered of the first is forgotten", forgotten.Load)
}

// A cache counts although it holds nothing of the workload: what it has missed may be there.
func TestEmptyCachesCount(t *testing.T) {
	for _, tt := range []struct{ resource, want string }{
		{"horizontalpodautoscalers", "horizontalpodautoscalers.autoscaling"},
		{"scaledobjects", "scaledobjects.keda.sh"},
		{"validatingadmissionpolicies", "validatingadmissionpolicies.admissionregistration.k8s.io"},
		{"validatingadmissionpolicybindings", "validatingadmissionpolicybindings.admissionregistration.k8s.io"},
	} {
		t.Run(tt.resource, func(t *testing.T) {
			core, generic := setsServed(false, llm("Static"))
			b := newFixtureOn(t, core, generic)
			// The last reactor comes first.
			for _, fake := range []*clienttesting.Fake{&core.Fake, &generic.Fake} {
				fake.PrependWatchReactor(tt.resource, func(clienttesting.Action) (bool, watch.Interface, error) {
					return true, nil, apierrors.NewTooManyRequestsError("later")
				})
			}
			b.run()
			key := KeyFor(KindSet, lwstest.VLLM.Namespace, "llm")
			b.eventually("the cache is stale", func() bool {
				s, err := b.Observe(key)
				return err == nil && slices.ContainsFunc(s.Stale, func(c plan.StaleCache) bool { return c.Resource == tt.want })
			})
		})
	}
}
