// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// growthFigures are about a driver whose fleet has grown.
type growthFigures struct {
	Workloads int `json:"workloads"`
	Pods      int `json:"pods"`
	// Synced is from exec to SERVING.
	Synced float64 `json:"synced"`
	LiveMB float64 `json:"liveMB"`
	// EventCPU is the driver's CPU time per change of a pod, in milliseconds. The changes are of an adopted workload's pods.
	EventCPU float64 `json:"eventCPU"`
}

const (
	growthGroups, growthSize = 4, 2
	// growthEvents is how many changes of pods are measured.
	growthEvents = 5000
)

// growth are the numbers of workloads.
var growth = []int{100, 1000}

// measureGrowth measures the driver beside fleets of objects, while no controller runs.
func (b *bench) measureGrowth(ctx context.Context, r *report) error {
	if err := b.stopControllers(ctx); err != nil {
		return err
	}
	made := 0
	for _, n := range growth {
		b.logf("making %d pods of %d LeaderWorkerSets", (n-made)*growthGroups*growthSize, n-made)
		if err := b.seedFleet(ctx, made, n); err != nil {
			return err
		}
		made = n
		f, err := b.measureGrown(ctx, n)
		if err != nil {
			return err
		}
		r.Growth = append(r.Growth, f)
	}
	return nil
}

func growthName(i int) string { return fmt.Sprintf("growth-%d", i) }

func (b *bench) seedFleet(ctx context.Context, from, to int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * seeders)
	for i := from; i < to; i++ {
		g.Go(func() error { return b.createFleetSet(ctx, growthName(i), growthGroups, growthSize) })
		for pod := range growthGroups * growthSize {
			g.Go(func() error { return b.createFleetPod(ctx, growthName(i), pod/growthSize, pod%growthSize, growthSize) })
		}
	}
	return g.Wait()
}

func (b *bench) measureGrown(ctx context.Context, n int) (growthFigures, error) {
	f := growthFigures{Workloads: n, Pods: n * growthGroups * growthSize}
	d, err := b.startDriver(ctx)
	if err != nil {
		return f, err
	}
	defer d.stop()
	f.Synced = seconds(d.serves)
	ref := &pb.WorkloadRef{Namespace: namespace, Name: growthName(0)}
	if _, err := d.Adopt(ctx, &pb.AdoptRequest{Workload: ref}); err != nil {
		return f, err
	}
	if f.LiveMB, err = liveHeap(ctx, d, growthName(0)); err != nil {
		return f, err
	}
	before, err := d.busy()
	if err != nil {
		return f, err
	}
	for i := range growthEvents {
		if err := b.touch(ctx, fmt.Sprintf("%s-%d-1", growthName(0), i%growthGroups), i); err != nil {
			return f, err
		}
	}
	// The driver is idle once it has handled the last change.
	for last := time.Duration(-1); ; {
		if err := sleep(ctx, pause); err != nil {
			return f, err
		}
		after, err := d.busy()
		if err != nil {
			return f, err
		}
		if after == last {
			f.EventCPU = float64((after - before).Microseconds()) / 1000 / growthEvents
			return f, nil
		}
		last = after
	}
}

// touch makes a pod unready or ready again.
func (b *bench) touch(ctx context.Context, pod string, i int) error {
	ready := map[bool]string{true: "False", false: "True"}[i/growthGroups%2 == 0]
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, ready)
	_, err := b.kube.CoreV1().Pods(namespace).Patch(ctx, pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("change pod %s: %w", pod, err)
	}
	return nil
}
