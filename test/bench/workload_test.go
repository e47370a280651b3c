// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	// patience bounds each wait; the run fails after it.
	patience = 2 * time.Minute
	// pause lets controllers and events come to rest between two releases.
	pause = time.Second

	groups         = 4
	groupSize      = 2
	maxUnavailable = 1
)

// workload is one LeaderWorkerSet under measurement.
type workload struct {
	name    string
	version int

	startup time.Duration // of each pod
}

func (w *workload) image() string { return fmt.Sprintf("example.com/model:v%d", w.version) }

func (w *workload) ref() *pb.WorkloadRef { return &pb.WorkloadRef{Namespace: namespace, Name: w.name} }

// deploy creates a workload and waits until it is ready.
func (b *bench) deploy(p *pods, w *workload, replicas, size int) {
	b.Helper()
	w.version = 1
	suite.Create(b, b.sets, w.object(replicas, size))
	p.until(patience, w.name+" is ready", func() bool { return p.serve(replicas*size, w) })
	b.rest(w)
}

func (w *workload) object(replicas, size int) *lws.LeaderWorkerSet {
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "model", Image: w.image()}},
	}}
	template.Annotations = map[string]string{}
	if w.startup > 0 {
		template.Annotations[cluster.AnnotationStartup] = w.startup.String()
	}
	return &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{Name: w.name},
		Spec: lws.LeaderWorkerSetSpec{
			Replicas:             ptr.To(int32(replicas)),
			StartupPolicy:        lws.LeaderCreatedStartupPolicy,
			LeaderWorkerTemplate: lws.LeaderWorkerTemplate{WorkerTemplate: template, Size: ptr.To(int32(size))},
			RolloutStrategy: lws.RolloutStrategy{
				Type: lws.RollingUpdateStrategyType,
				RollingUpdateConfiguration: &lws.RollingUpdateConfiguration{
					MaxUnavailable: intstr.FromInt32(maxUnavailable), MaxSurge: intstr.FromInt32(0),
				},
			},
		},
	}
}

// change sets the next image: what a user does, and what starts either clock.
func (b *bench) change(ctx context.Context, w *workload) error {
	w.version++
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":%q}]`, w.image())
	_, err := b.sets.Patch(ctx, w.name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// rest waits until LWS reports that all groups are updated and ready, and a little longer, so that this change does not affect
// the next.
func (b *bench) rest(w *workload) {
	b.Helper()
	await.Nil(b, "LeaderWorkerSet reports "+w.name+" ready", func(ctx context.Context) error {
		now, err := b.sets.Get(ctx, w.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := now.Status
		if s.ObservedGeneration != now.Generation || s.ReadyReplicas != *now.Spec.Replicas || s.Replicas != *now.Spec.Replicas {
			return fmt.Errorf("its status is %+v", s)
		}
		return nil
	})
	b.must(sleep(b.ctx, pause))
}

// pods is an administrator's watch of the workloads' pods. It decides for both sides when a group is done, not LWS's status or
// the driver's response.
type pods struct {
	*bench

	all     corelisters.PodNamespaceLister
	changed chan struct{}
}

// watchPods watches until stop is called, or the part ends.
func (b *bench) watchPods() (p *pods, stop context.CancelFunc) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(b.kube, 0, informers.WithNamespace(namespace))
	watched := factory.Core().V1().Pods()
	p = &pods{b, watched.Lister().Pods(namespace), make(chan struct{}, 1)}
	notify := func(any) {
		select {
		case p.changed <- struct{}{}:
		default:
		}
	}
	_, err := watched.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notify, UpdateFunc: func(_, now any) { notify(now) }, DeleteFunc: notify,
	})
	b.must(err)
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), watched.Informer().HasSynced) {
		b.Fatal(ctx.Err())
	}
	return p, cancel
}

// serve reports whether each of these workloads has exactly n pods, all of them ready and with its image.
func (p *pods) serve(n int, workloads ...*workload) bool {
	images := make(map[string]string, len(workloads))
	for _, w := range workloads {
		images[w.name] = w.image()
	}
	found := 0
	all, _ := p.all.List(labels.Everything()) // a cache returns no error
	for _, one := range all {
		image, ok := images[one.Labels[lws.SetNameLabelKey]]
		if !ok {
			continue
		}
		if !grouptags.Ready(one) || one.Spec.Containers[0].Image != image {
			return false
		}
		found++
	}
	return found == n*len(images)
}

// until returns the moment at which a condition of the pods holds.
func (p *pods) until(limit time.Duration, what string, holds func() bool) time.Time {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	for !holds() {
		select {
		case <-p.changed:
		case <-ctx.Done():
			p.Fatalf("wait until %s: %v", what, ctx.Err())
		}
	}
	return time.Now()
}
