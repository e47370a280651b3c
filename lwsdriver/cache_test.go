// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// foreign are LeaderWorkerSets that look as if a release had added them to vllm.
var foreign = []struct {
	name, reason string
	change       func(*lws.LeaderWorkerSet)
}{
	{"copy", "with everything but the name", func(w *lws.LeaderWorkerSet) { w.Name = "mine" }},
	{"labels", "without an owner", func(w *lws.LeaderWorkerSet) { w.Name, w.OwnerReferences = "mine", nil }},
	{"labels and name", "the name alone is no proof either", func(w *lws.LeaderWorkerSet) { w.OwnerReferences = nil }},
	{"not controlled", "an owner that is no controller", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].Controller = nil }},
	{"other owner", "owned by another workload", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].Name = "other" }},
	{"other kind", "owned by another kind", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].Kind = "DisaggregatedSet" }},
	{"other group", "of another API", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].APIVersion = "apps/v1" }},
	{"bad group", "of no API", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].APIVersion = "a/b/c" }},
	{"no role", "somebody took the label off", func(w *lws.LeaderWorkerSet) { delete(w.Labels, record.RoleLabel) }},
	{"other revision", "somebody changed the label", func(w *lws.LeaderWorkerSet) { w.Labels[record.RevisionLabel] = "other" }},
}

// A LeaderWorkerSet that no release added is never scaled, deleted or let go of, whatever its labels say.
func TestForeignIsNotAdded(t *testing.T) {
	for _, phase := range []record.Phase{record.Progressing, record.RollingBack, record.Promoted} {
		for _, tt := range foreign {
			t.Run(string(phase)+"/"+tt.name, func(t *testing.T) {
				stable := inPhase(t, phase)
				w := canaryOf(t, stable)
				tt.change(w)
				b := newBed(t, stable, w)
				if added := b.look().Added; len(added) > 0 {
					t.Errorf("%s: %s counts as added", tt.reason, w.Name)
				}
				b.engine.workOn(t.Context(), vllm)
				for _, write := range b.writes() {
					if strings.HasSuffix(write, " "+w.Name) {
						t.Errorf("%s: %s", tt.reason, write)
					}
				}
			})
		}
	}
}

func TestAddedIsRetired(t *testing.T) {
	stable := inPhase(t, record.RollingBack)
	b := newBed(t, stable, canaryOf(t, stable))
	if got := b.look().Added; len(got) != 1 || got[0].Name != "vllm-new" || got[0].Carries != "new" || !got[0].Held {
		t.Fatalf("added are %+v", got)
	}
	ctx, cancel := withoutWaiting(t)
	defer cancel()
	b.engine.workOn(ctx, vllm)
	if got := b.writes(); !slices.Equal(got, []string{"delete vllm-new"}) {
		t.Errorf("writes %q", got)
	}
}

// The same workload gone: what its release added is let go of, and nothing else.
func TestForeignIsNoOrphan(t *testing.T) {
	for _, tt := range foreign {
		t.Run(tt.name, func(t *testing.T) {
			w := canaryOf(t, stableWorkload())
			tt.change(w)
			b := newBed(t, w)
			b.engine.workOn(t.Context(), vllm)
			if got := b.writes(); len(got) > 0 {
				t.Errorf("%s: writes %q", tt.reason, got)
			}
		})
	}
}

// Its deletion must not hang on a finalizer that came with the copied manifest.
func TestForeignCanBeDeleted(t *testing.T) {
	for _, tt := range foreign {
		t.Run(tt.name, func(t *testing.T) {
			w := canaryOf(t, stableWorkload())
			tt.change(w)
			w.DeletionTimestamp = &metav1.Time{Time: noon}
			b := newBed(t, w)
			b.engine.workOn(t.Context(), KeyOf(w))
			if got := slices.Compact(b.writes()); !slices.Equal(got, []string{"patch " + w.Name}) { // its cache stands still
				t.Fatalf("%s: writes %q", tt.reason, got)
			}
			now, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(w.Namespace).Get(t.Context(), w.Name, metav1.GetOptions{})
			if err == nil && HasFinalizer(now) {
				t.Errorf("%s: the finalizer is still there", tt.reason)
			}
		})
	}
}

func TestCheckWorkload(t *testing.T) {
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
			w := canaryOf(t, stableWorkload())
			tt.change(w)
			err := plan.CheckWorkload(plan.Observation{Key: KeyOf(w), Identity: newBed(t).engine.Observer.Caches.identity(w)})
			if got := drivererr.Reason(err); got != tt.want {
				t.Errorf("reason %s, want %s", got, tt.want)
			}
			says(t, err, tt.says...)
		})
	}
}

func TestCheckWorkloadTakesTheUsersOwn(t *testing.T) {
	if err := plan.CheckWorkload(plan.Observation{Key: vllm, Identity: newBed(t).engine.Observer.Caches.identity(stableWorkload())}); err != nil {
		t.Error(err)
	}
}

// A record that came with a copied manifest holds the copy, and releases nothing.
func TestCopiedRecord(t *testing.T) {
	stable := inPhase(t, record.RollingBack)
	rec, err := record.DecodeRecord(stable.Annotations[record.RecordAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[types.UID]bool{stable.UID: true, "": true, "other": false} {
		rec.UID = uid
		if stable.Annotations[record.RecordAnnotation], err = rec.Encode(); err != nil {
			t.Fatal(err)
		}
		s := newBed(t, stable).look()
		if s.Record == nil || (s.Record.Release != nil) != want || !record.SameRolling(s.Record.Saved, rec.Saved) {
			t.Errorf("with UID %q the record is %+v", uid, s.Record)
		}
	}
}

// A cache that is filled late and has nothing in it brings no event; who waits for it looks again all the same.
func TestEmptyCacheFilledLate(t *testing.T) {
	for resource, role := range map[string]string{"poddisruptionbudgets": record.RoleBudget, "controllerrevisions": record.RoleSnapshot} {
		t.Run(resource, func(t *testing.T) {
			b := newBed(t, unrecorded())
			var readable atomic.Bool
			b.core.PrependReactor("list", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
				list, ok := action.(clienttesting.ListAction)
				if ok && !readable.Load() && strings.Contains(list.GetListRestrictions().Labels.String(), role) {
					return true, nil, errors.New("not now")
				}
				return false, nil, nil
			})
			b.engine.Observer.Budgets.want()
			b.run()
			b.eventually("the other caches are filled", b.Synced)
			ctx, cancel := context.WithCancel(t.Context())
			var known atomic.Bool
			var waiting sync.WaitGroup
			defer waiting.Wait()
			defer cancel()
			waiting.Go(func() {
				_ = b.until(ctx, vllm, durationpb.New(time.Minute), func() (bool, error) {
					known.Store(b.engine.Observer.Budgets.informer.HasSynced() && b.engine.Observer.History.informer.HasSynced())
					return known.Load(), nil
				})
			})
			readable.Store(true)
			b.eventually("who waits is told", known.Load)
		})
	}
}
