// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	runtimeclient "sigs.k8s.io/controller-runtime/pkg/client"

	lockstepconfig "github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/kruise/install"
)

// The same release by three hosts: 4 steps without pauses, of 4 groups or of a Deployment with 4 pods, whose pods are ready at
// once. They differ in how they wait: Kruise Rollouts requeues after 2 and 3 seconds, Lockstep after changes.

var (
	rolloutResource      = schema.GroupVersionResource{Group: "rollouts.kruise.io", Version: "v1beta1", Resource: "rollouts"}
	batchReleaseResource = schema.GroupVersionResource{Group: "rollouts.kruise.io", Version: "v1beta1", Resource: "batchreleases"}
	deploymentResource   = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// Users whose requests are counted.
const (
	driverUser       = "system:serviceaccount:" + lockstepconfig.Namespace + ":" + lockstepconfig.ServiceAccount
	kruiseUser       = "system:serviceaccount:" + cluster.KruiseNamespace + ":" + cluster.KruiseServiceAccount
	targetUser       = "system:serviceaccount:" + lockstepconfig.Namespace + ":" + lockstepconfig.KruiseServiceAccount
	batchReleaseUser = "system:serviceaccount:" + lockstepconfig.Namespace + ":" + lockstepconfig.BatchReleaseServiceAccount
)

const stockRollout = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: model, image: "example.com/model:v1"}]}
---
apiVersion: rollouts.kruise.io/v1beta1
kind: Rollout
metadata: {name: %[1]s}
spec:
  workloadRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}
  strategy:
    canary:
      enableExtraWorkloadForCanary: true
      steps: [%[3]s]
`

const batchRelease = `
apiVersion: rollouts.kruise.io/v1beta1
kind: BatchRelease
metadata: {name: %[1]s}
spec:
  workloadRef: {apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: %[1]s}
  releasePlan:
    rollingStyle: %[2]s
    enableExtraWorkloadForCanary: %[3]t
    batches: [%[4]s]
    batchPartition: %[5]d
    finalizingPolicy: WaitResume
`

// way is one host and what it releases.
type way struct {
	name  string
	users []string
	// begin is called before each release, and does not count. Nil means that there is nothing to do.
	begin func(ctx context.Context) error
	// change sets the next image, which starts the clock.
	change func(ctx context.Context) error
	// follow does what the release needs from a user, and returns when the host reports its end.
	follow func(ctx context.Context) error
	// done reports whether the pods are in their final state.
	done func() bool
	rest func(ctx context.Context) error
}

// measureHosts runs on a control plane of its own: first with Kruise's manager, then without.
func (b *bench) measureHosts(ctx context.Context, r *report) error {
	b.lower()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := b.raise(ctx, cluster.WithKruise(install.DriverInside)); err != nil {
		return err
	}
	if err := b.cluster.Apply(ctx, "", fmt.Appendf(nil, "{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace)); err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(b.cluster.RESTConfig())
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	p, err := watchPods(ctx, b.kube)
	if err != nil {
		return err
	}
	h := &hosts{bench: b, pods: p, client: client}
	h.table = r.table(fmt.Sprintf("HOSTS: %d steps, %d groups of %d or %d pods", len(batches), groups, groupSize, groups), "took", "writes", "reads", "events")
	stock, err := h.withKruise(ctx)
	if err != nil {
		return err
	}
	own, err := h.withoutKruise(ctx)
	if err != nil {
		return err
	}
	faster := seconds(stock) / seconds(own)
	r.aim(faster >= 5, "lockstep batchrelease (canary) beside stock Kruise and a Deployment", "at least 5x faster", "%.1fx", faster)
	return nil
}

// hosts are the compared hosts.
type hosts struct {
	*bench
	pods   *pods
	client dynamic.Interface
	table  *table
}

func (h *hosts) withKruise(ctx context.Context) (time.Duration, error) {
	controller, err := h.startHost(ctx, "kruise", lockstepconfig.KruiseServiceAccount)
	if err != nil {
		return 0, err
	}
	defer controller.stop()
	stock, err := h.stockKruise(ctx)
	if err != nil {
		return 0, err
	}
	target, err := h.throughTarget(ctx)
	if err != nil {
		return 0, err
	}
	return h.measure(ctx, stock, target)
}

// withoutKruise: Lockstep's host refuses to run beside Kruise's manager, which panics on such an object.
func (h *hosts) withoutKruise(ctx context.Context) (time.Duration, error) {
	if err := h.cluster.StopComponent(ctx, cluster.Kruise); err != nil {
		return 0, err
	}
	admission := h.kube.AdmissionregistrationV1()
	for _, name := range []string{"kruise-rollout-mutating-webhook-configuration", "kruise-rollout-validating-webhook-configuration"} {
		err := errors.Join(
			runtimeclient.IgnoreNotFound(admission.MutatingWebhookConfigurations().Delete(ctx, name, metav1.DeleteOptions{})),
			runtimeclient.IgnoreNotFound(admission.ValidatingWebhookConfigurations().Delete(ctx, name, metav1.DeleteOptions{})),
		)
		if err != nil {
			return 0, fmt.Errorf("remove Kruise: %w", err)
		}
	}
	for _, read := range []func() ([]byte, error){lockstepconfig.BatchRelease, lockstepconfig.BatchReleaseDriver} {
		manifest, err := read()
		if err != nil {
			return 0, err
		}
		if err := h.cluster.Apply(ctx, "", manifest); err != nil {
			return 0, err
		}
	}
	host, err := h.startHost(ctx, "batchrelease", lockstepconfig.BatchReleaseServiceAccount)
	if err != nil {
		return 0, err
	}
	defer host.stop()
	canary, err := h.ourHost(ctx, "Canary")
	if err != nil {
		return 0, err
	}
	partition, err := h.ourHost(ctx, "Partition")
	if err != nil {
		return 0, err
	}
	return h.measure(ctx, canary, partition)
}

// steps are the four steps, with the text of each.
func steps(of string) string {
	all := make([]string, 0, len(batches))
	for _, batch := range batches {
		all = append(all, fmt.Sprintf(of, batch))
	}
	return strings.Join(all, ", ")
}

const kruiseStep = "{replicas: %s, pause: {duration: 0}}"

// stockKruise is a Deployment with as many pods as the others have groups.
func (h *hosts) stockKruise(ctx context.Context) (*way, error) {
	const name = "stock"
	if err := h.cluster.Apply(ctx, namespace, fmt.Appendf(nil, stockRollout, name, groups, steps(kruiseStep))); err != nil {
		return nil, err
	}
	version := 1
	done := func() bool { return h.pods.serves(name, fmt.Sprintf("example.com/model:v%d", version), groups) }
	return &way{
		name: "stock Kruise v0.6.3, canary of a Deployment", users: []string{kruiseUser},
		change: func(ctx context.Context) error {
			version++
			patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"model","image":"example.com/model:v%d"}]}}}}`, version)
			_, err := h.client.Resource(deploymentResource).Namespace(namespace).
				Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		},
		follow: func(ctx context.Context) error { return h.untilHealthy(ctx, name, done) },
		done:   done,
		rest:   func(ctx context.Context) error { return sleep(ctx, pause) },
	}, h.untilHealthy(ctx, name, done)
}

// throughTarget is a LeaderWorkerSet behind a RolloutTarget, released by the same manager.
func (h *hosts) throughTarget(ctx context.Context) (*way, error) {
	w, err := h.deployed(ctx, "target")
	if err != nil {
		return nil, err
	}
	if err := h.cluster.Apply(ctx, namespace, install.Rollout(w.name, steps(kruiseStep))); err != nil {
		return nil, err
	}
	done := func() bool { return h.pods.serves(w.name, w.image(), groups*groupSize) }
	return &way{
		name: "stock Kruise v0.6.3, RolloutTarget of a LeaderWorkerSet", users: []string{kruiseUser, targetUser},
		change: func(ctx context.Context) error { return h.change(ctx, w) },
		follow: func(ctx context.Context) error { return h.untilHealthy(ctx, w.name, done) },
		done:   done,
		rest:   func(ctx context.Context) error { return h.rest(ctx, w) },
	}, h.untilHealthy(ctx, w.name, done)
}

// ourHost is a LeaderWorkerSet and a BatchRelease, which goes through all its batches, and is promoted after the last one.
func (h *hosts) ourHost(ctx context.Context, style string) (*way, error) {
	w, err := h.deployed(ctx, "batchrelease-"+strings.ToLower(style))
	if err != nil {
		return nil, err
	}
	releases := h.client.Resource(batchReleaseResource).Namespace(namespace)
	return &way{
		name: "lockstep batchrelease, " + style + " of a LeaderWorkerSet", users: []string{batchReleaseUser},
		begin: func(ctx context.Context) error {
			if err := runtimeclient.IgnoreNotFound(releases.Delete(ctx, w.name, metav1.DeleteOptions{})); err != nil {
				return err
			}
			if err := h.untilGone(ctx, w.name); err != nil {
				return err
			}
			manifest := fmt.Appendf(nil, batchRelease, w.name, style, style == "Canary", steps("{canaryReplicas: %s}"), len(batches)-1)
			if err := h.cluster.Apply(ctx, namespace, manifest); err != nil {
				return err
			}
			return h.until(ctx, batchReleaseResource, w.name, func(o *unstructured.Unstructured) bool {
				return strings.Contains(text.Field(o, "status", "message"), "begins when the template changes")
			})
		},
		change: func(ctx context.Context) error { return h.change(ctx, w) },
		follow: func(ctx context.Context) error {
			last := fmt.Sprint(len(batches) - 1)
			if err := h.until(ctx, batchReleaseResource, w.name, func(o *unstructured.Unstructured) bool {
				return text.Field(o, "status", "canaryStatus", "currentBatch") == last && text.Field(o, "status", "canaryStatus", "batchState") == "Ready"
			}); err != nil {
				return err
			}
			_, err := releases.Patch(ctx, w.name, types.MergePatchType, []byte(`{"spec":{"releasePlan":{"batchPartition":null}}}`), metav1.PatchOptions{})
			if err != nil {
				return err
			}
			return h.until(ctx, batchReleaseResource, w.name, func(o *unstructured.Unstructured) bool { return text.Field(o, "status", "phase") == "Completed" })
		},
		done: func() bool { return h.pods.serves(w.name, w.image(), groups*groupSize) },
		rest: func(ctx context.Context) error { return h.rest(ctx, w) },
	}, nil
}

func (h *hosts) deployed(ctx context.Context, name string) (*workload, error) {
	w := &workload{name: name}
	return w, h.deploy(ctx, h.pods, w, groups, groupSize)
}

// measure alternates between the hosts, and returns the first one's median. The first release of each is a warm-up and does not count.
// Requests are per release, until all is at rest.
func (h *hosts) measure(ctx context.Context, ways ...*way) (time.Duration, error) {
	reps := max(2, h.reps/3)
	times, windows := make([][]time.Duration, len(ways)), make([][]window, len(ways))
	for rep := range reps + 1 {
		for i, w := range ways {
			used, took, err := h.once(ctx, w)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", w.name, err)
			}
			h.logf("%s: %.2f s", w.name, took.Seconds())
			if rep > 0 {
				times[i], windows[i] = append(times[i], took), append(windows[i], used)
			}
		}
	}
	for i, w := range ways {
		all, err := h.requests(windows[i][0].from, w.users...)
		if err != nil {
			return 0, err
		}
		c := count(all, windows[i])
		h.table.row(w.name, "%s|%.0f|%.0f|%.0f", spreadOf(times[i]), medianOf(c.writes), medianOf(c.reads), medianOf(c.events))
	}
	return spreadOf(times[0]).median, nil
}

// once is one release, from the change of the image until the host reports its end and every pod is in its final state.
func (h *hosts) once(ctx context.Context, w *way) (used window, took time.Duration, err error) {
	if w.begin != nil {
		if err := w.begin(ctx); err != nil {
			return used, 0, err
		}
	}
	used.from = time.Now()
	if err := w.change(ctx); err != nil {
		return used, 0, err
	}
	if err := w.follow(ctx); err != nil {
		return used, 0, err
	}
	took = time.Since(used.from)
	if _, err := h.pods.until(ctx, "all pods are updated", w.done); err != nil {
		return used, 0, err
	}
	err = w.rest(ctx)
	used.to = time.Now()
	return used, took, err
}

// untilHealthy waits until Kruise reports the end of a Rollout and the pods are in their final state: Kruise reports the same
// before the release begins.
func (h *hosts) untilHealthy(ctx context.Context, name string, done func() bool) error {
	return h.until(ctx, rolloutResource, name, func(o *unstructured.Unstructured) bool {
		return text.Field(o, "status", "phase") == "Healthy" && text.Field(o, "status", "observedGeneration") == fmt.Sprint(o.GetGeneration()) && done()
	})
}

// until polls as an administrator, whose requests are not counted.
func (h *hosts) until(ctx context.Context, resource schema.GroupVersionResource, name string, holds func(*unstructured.Unstructured) bool) error {
	var last *unstructured.Unstructured
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 2*patience, true, func(ctx context.Context) (bool, error) {
		o, err := h.client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = o
		return holds(o), nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("wait for %s %s, whose status is %v: %w", resource.Resource, name, last.Object["status"], err)
	}
	return err
}

func (h *hosts) untilGone(ctx context.Context, name string) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		_, err := h.client.Resource(batchReleaseResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// startHost starts a host as its service account. It does not wait: the first release does, and does not count.
func (h *hosts) startHost(ctx context.Context, command, account string) (*process, error) {
	config, err := h.cluster.ServiceAccountConfig(ctx, lockstepconfig.Namespace, account)
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(h.dir, account+".kubeconfig")
	if err := cluster.WriteKubeconfig(config, kubeconfig); err != nil {
		return nil, err
	}
	return h.spawn(command, "--kubeconfig", kubeconfig)
}
