// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

// removal is one way to delete a canary.
type removal struct {
	name   string
	remove func(*bench, context.Context, *pods, string) error
}

// ownerName is the workload that the canaries belong to.
const ownerName = "owner"

// terminations are the termination times of a pod.
var terminations = []time.Duration{0, 3 * time.Second}

var removals = []removal{
	{"delete in the foreground", func(b *bench, ctx context.Context, _ *pods, name string) error {
		return b.remove(ctx, name, metav1.DeletePropagationForeground)
	}},
	{"scale to 0, then delete", func(b *bench, ctx context.Context, p *pods, name string) error {
		_, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).
			Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("scale LeaderWorkerSet %s: %w", name, err)
		}
		if _, err := p.until(ctx, name+" has no pods", func() bool { return p.gone(name) }); err != nil {
			return err
		}
		return b.remove(ctx, name, metav1.DeletePropagationBackground)
	}},
	{"delete in the background", func(b *bench, ctx context.Context, _ *pods, name string) error {
		return b.remove(ctx, name, metav1.DeletePropagationBackground)
	}},
}

// measureRemoval compares ways to delete a canary of 4 groups that another workload owns.
func (b *bench) measureRemoval(ctx context.Context, r *report) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := watchPods(ctx, b.kube)
	if err != nil {
		return err
	}
	owner := &workload{name: ownerName}
	if err := b.deploy(ctx, p, owner, 1, groupSize); err != nil {
		return err
	}
	for _, termination := range terminations {
		for i, way := range removals {
			f, err := b.removeOver(ctx, p, fmt.Sprintf("away-%d-%d", termination.Milliseconds(), i), termination, way)
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			r.Removals = append(r.Removals, f)
		}
	}
	return nil
}

// removeOver measures one way, each time with a new canary.
func (b *bench) removeOver(ctx context.Context, p *pods, name string, termination time.Duration, way removal) (removalFigures, error) {
	f := removalFigures{Way: way.name, Termination: seconds(termination)}
	var podsGone, objectGone []time.Duration
	for rep := range b.reps {
		w := &workload{name: fmt.Sprintf("%s-%d", name, rep), owner: ownerName, termination: termination}
		if err := b.deploy(ctx, p, w, groups, groupSize); err != nil {
			return f, err
		}
		pods, object, err := b.timeRemoval(ctx, p, w.name, way)
		if err != nil {
			return f, err
		}
		podsGone, objectGone = append(podsGone, pods), append(objectGone, object)
	}
	f.PodsGone, f.ObjectGone = spreadOf(podsGone), spreadOf(objectGone)
	return f, nil
}

// timeRemoval returns when all pods were deleted and when the object was.
func (b *bench) timeRemoval(ctx context.Context, p *pods, name string, way removal) (pods, object time.Duration, err error) {
	begin := time.Now()
	if err := way.remove(b, ctx, p, name); err != nil {
		return 0, 0, err
	}
	objectGone := make(chan error, 1)
	go func() {
		err := b.awaitAbsence(ctx, name)
		object = time.Since(begin)
		objectGone <- err
	}()
	at, err := p.until(ctx, name+" has no pods", func() bool { return p.gone(name) })
	return at.Sub(begin), object, firstOf(<-objectGone, err)
}

func (b *bench) awaitAbsence(ctx context.Context, name string) error {
	err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		_, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if err != nil {
		return fmt.Errorf("wait until LeaderWorkerSet %s is gone: %w", name, err)
	}
	return nil
}

func (b *bench) remove(ctx context.Context, name string, policy metav1.DeletionPropagation) error {
	err := b.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy})
	if err != nil {
		return fmt.Errorf("delete LeaderWorkerSet %s: %w", name, err)
	}
	return nil
}
