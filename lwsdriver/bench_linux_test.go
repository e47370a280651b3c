// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsfake "sigs.k8s.io/lws/client-go/clientset/versioned/fake"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	benchStable = 800 // groups
	benchCanary = 200
	benchSize   = 8
	benchID     = "bench"
)

// BenchmarkCalculateBatchContext answers from real informers that hold 1,000 groups of 8 pods, a fifth of them a canary's,
// at rest and while 100 pods change per second. Beside the time on the clock it reports the time on the CPU, which a busy
// machine does not stretch.
func BenchmarkCalculateBatchContext(b *testing.B) {
	for _, churn := range []int{0, 100} {
		for _, rows := range []bool{false, true} {
			b.Run(fmt.Sprintf("groups=%t/churn=%d", rows, churn), func(b *testing.B) {
				f := newBenchFixture(b)
				defer f.churn(churn)()
				f.run(b, rows)
			})
		}
	}
}

// benchFixture is a driver in the middle of a release.
type benchFixture struct {
	driver *Driver
	pods   *watch.FakeWatcher // events of pods: changes of the fake clientset cost more than the driver's work on them
}

func (f *benchFixture) run(b *testing.B, rows bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	request := &pb.CalculateBatchContextRequest{
		Workload: &pb.WorkloadRef{Namespace: "ns", Name: "stable"}, ReleaseId: benchID, IncludeGroups: rows,
	}
	clock, cpu := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	for b.Loop() {
		begin, beginCPU := time.Now(), threadTime(b)
		answer, err := f.driver.CalculateBatchContext(b.Context(), request)
		cpu, clock = append(cpu, threadTime(b)-beginCPU), append(clock, time.Since(begin))
		require.NoError(b, err)
		if c := answer.GetContext(); c.GetTotal() != benchStable+benchCanary || c.GetUpdatedReady() != benchCanary {
			b.Fatalf("unexpected context: %v", c)
		}
		time.Sleep(200 * time.Microsecond) //nolint:forbidigo // a pace, not a wait: lets changes in between
	}
	for name, took := range map[string][]time.Duration{"clock": clock, "cpu": cpu} {
		slices.Sort(took)
		for label, share := range map[string]float64{"p50": 0.50, "p99": 0.99} {
			b.ReportMetric(float64(took[int(share*float64(len(took)-1))].Microseconds())/1000, name+"-"+label+"-ms")
		}
	}
}

// threadTime is the CPU time that this thread has used.
func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	require.NoError(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

// churn makes workers of the stable side unready and ready again until the result is called.
func (f *benchFixture) churn(perSecond int) (stop func()) {
	if perSecond == 0 {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(time.Second / time.Duration(perSecond))
		defer ticks.Stop()
		for {
			select {
			case <-end:
				return
			case <-ticks.C:
			}
			pod := benchPod("stable", "old", rand.IntN(benchStable), 1+rand.IntN(benchSize-1))
			if rand.IntN(2) == 0 {
				pod.Status.Conditions[0].Status = corev1.ConditionFalse
			}
			f.pods.Modify(pod)
		}
	}()
	return func() { close(end); <-ended }
}

func newBenchFixture(b *testing.B) *benchFixture {
	b.Helper()
	sets, revisions := benchWorkloads(b)
	objects := revisions
	for set, n := range map[string]int{"stable": benchStable, sets[1].Name: benchCanary} {
		for group := range n {
			for worker := range benchSize {
				objects = append(objects, benchPod(set, map[string]string{"stable": "old"}[set], group, worker))
			}
		}
	}
	f := &benchFixture{pods: watch.NewFake()}
	core := fake.NewClientset(objects...)
	core.PrependWatchReactor("pods", clienttesting.DefaultWatchReactor(f.pods, nil))
	o := Options{Logger: slog.New(slog.DiscardHandler), now: time.Now}
	d := newDriver(core, lwsfake.NewClientset(sets[0], sets[1]), lwstest.NoRoutes(), o)
	f.driver = d
	go func() { _ = d.Run(b.Context()) }()
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for !d.Synced() || !d.engine.Idle() {
		<-ticks.C
	}
	return f
}

// benchWorkloads are a workload in its first batch, its canary, and the revisions that LWS has of both.
func benchWorkloads(b *testing.B) (sets [2]*lws.LeaderWorkerSet, revisions []kruntime.Object) {
	policyMessage := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}}
	policy, err := record.EncodePolicy(policyMessage)
	require.NoError(b, err)
	now := time.Now().UTC()
	rec := record.Record{Saved: record.Native(record.Hold()), Release: &record.Release{
		ID: benchID, Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: record.Progressing, StartedAt: now, PhaseAt: now,
	}}
	value, err := rec.Encode()
	require.NoError(b, err)
	stable := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "stable", UID: "stable", Generation: 2, Annotations: map[string]string{record.RecordAnnotation: value},
	}}
	stable.Spec.Replicas = ptr.To[int32](benchStable)
	stable.Spec.LeaderWorkerTemplate.Size = ptr.To[int32](benchSize)
	stable.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Hold())
	target, err := (&record.Target{Groups: "25%", Batch: ptr.To(0), At: now}).Encode()
	require.NoError(b, err)
	canary := lwstest.Canary(b, stable)
	canary.Spec.Replicas, canary.Annotations[record.TargetAnnotation] = ptr.To[int32](benchCanary), target
	for _, w := range []*lws.LeaderWorkerSet{stable, canary} {
		revisions = append(revisions, benchRevision(b, w))
	}
	return [2]*lws.LeaderWorkerSet{stable, canary}, revisions
}

func benchRevision(b *testing.B, w *lws.LeaderWorkerSet) *appsv1.ControllerRevision {
	raw, err := json.Marshal(map[string]any{"spec": record.TemplateOf(w)})
	require.NoError(b, err)
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Namespace, Name: w.Name + "-new", UID: types.UID(w.Name + "-new"),
			Labels:          map[string]string{lws.SetNameLabelKey: w.Name, lws.RevisionKey: "new"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w, lws.GroupVersion.WithKind("LeaderWorkerSet"))},
		},
		Data: kruntime.RawExtension{Raw: raw},
	}
}

func benchPod(set, revision string, group, worker int) *corev1.Pod {
	if revision == "" {
		revision = "new"
	}
	name := set + "-" + strconv.Itoa(group)
	if worker > 0 {
		name += "-" + strconv.Itoa(worker)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name),
			Labels: map[string]string{
				lws.SetNameLabelKey: set, lws.GroupIndexLabelKey: strconv.Itoa(group),
				lws.WorkerIndexLabelKey: strconv.Itoa(worker), lws.RevisionKey: revision,
			},
			Annotations: map[string]string{lws.SizeAnnotationKey: strconv.Itoa(benchSize)},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		}}},
	}
}
