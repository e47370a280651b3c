// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

const (
	// removePeriod is the interval of checks.
	removePeriod = 300 * time.Millisecond
	// driverTime is how long the demo waits for the driver to remove its finalizers before it does so itself.
	driverTime = 30 * time.Second
)

// remove deletes what the demo created: the LeaderWorkerSets while the driver still runs, then the namespace with the rest. It
// deletes the namespace by UID, and only if it has the label of this run.
func (e *existing) remove(ctx context.Context, w io.Writer, stopDriver func()) error {
	defer stopDriver()
	if !e.attempted {
		return nil
	}
	namespace, found, err := e.find(ctx)
	if err != nil || !found {
		return err
	}
	fmt.Fprintf(w, "deleting namespace %s (UID %s) from %s\n", namespace.Name, namespace.UID, e.target())
	if err := e.removeWorkloads(ctx); err != nil {
		fmt.Fprintf(w, "warning: %v\n", err)
	}
	// Without the namespace the driver has no permissions.
	stopDriver()
	if err := e.removeNamespace(ctx, namespace); err != nil {
		return err
	}
	fmt.Fprintln(w, "deleted, with everything in it")
	return nil
}

// find returns the namespace that this run created, and reports whether it exists.
func (e *existing) find(ctx context.Context) (namespace *corev1.Namespace, found bool, err error) {
	var last error
	err = wait.PollUntilContextCancel(ctx, removePeriod, true, func(ctx context.Context) (bool, error) {
		namespace, last = e.core.CoreV1().Namespaces().Get(ctx, e.namespace, metav1.GetOptions{})
		return last == nil || apierrors.IsNotFound(last), nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("check whether namespace %s exists: %w; delete it when the API server answers: kubectl delete namespace %s",
			e.namespace, firstOf(last, err), e.namespace)
	}
	return namespace, last == nil && namespace.Labels[runLabel] == e.run, nil
}

// removeWorkloads deletes the LeaderWorkerSets of the demo's namespace. If the driver does not remove its finalizers in time, the
// demo does.
func (e *existing) removeWorkloads(ctx context.Context) error {
	deadline := time.Now().Add(driverTime)
	client := e.sets.LeaderworkersetV1().LeaderWorkerSets(e.namespace)
	var last error
	err := wait.PollUntilContextTimeout(ctx, removePeriod, 2*driverTime, true, func(ctx context.Context) (bool, error) {
		list, err := client.List(ctx, metav1.ListOptions{})
		if last = err; err != nil {
			return false, nil //nolint:nilerr // the next attempt may succeed; the last error is reported
		}
		late := time.Now().After(deadline)
		for i := range list.Items {
			w := &list.Items[i]
			switch {
			case w.DeletionTimestamp == nil && (w.Name == name || late):
				// The garbage collector deletes the canary, which this one owns.
				last = client.Delete(ctx, w.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(w.UID))})
			case w.DeletionTimestamp != nil && late && slices.Contains(w.Finalizers, record.Finalizer):
				last = e.removeFinalizer(ctx, w)
			}
		}
		return len(list.Items) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("delete the LeaderWorkerSets of namespace %s: %w", e.namespace, firstOf(last, err))
	}
	return nil
}

// removeFinalizer removes Lockstep's finalizer from a LeaderWorkerSet of the demo.
func (e *existing) removeFinalizer(ctx context.Context, w *lws.LeaderWorkerSet) error {
	finalizers := slices.DeleteFunc(slices.Clone(w.Finalizers), func(f string) bool { return f == record.Finalizer })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": w.UID, "resourceVersion": w.ResourceVersion, "finalizers": finalizers,
	}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = e.sets.LeaderworkersetV1().LeaderWorkerSets(w.Namespace).Patch(ctx, w.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("remove the finalizer of LeaderWorkerSet %s/%s: %w", w.Namespace, w.Name, err)
	}
	return nil
}

// removeNamespace deletes the namespace and waits until it is gone.
func (e *existing) removeNamespace(ctx context.Context, namespace *corev1.Namespace) error {
	client := e.core.CoreV1().Namespaces()
	var last error
	err := wait.PollUntilContextCancel(ctx, removePeriod, true, func(ctx context.Context) (bool, error) {
		now, err := client.Get(ctx, namespace.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.UID != namespace.UID {
			return true, nil
		}
		if last = err; err != nil {
			return false, nil //nolint:nilerr // the next attempt may succeed; the last error is reported
		}
		namespace = now
		if now.DeletionTimestamp == nil {
			last = client.Delete(ctx, now.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(now.UID))})
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("namespace %s of %s is not deleted: %s\n  to see it:    kubectl --kubeconfig %s --context %s get namespace %s -o yaml",
			namespace.Name, e.target(), blocking(namespace, firstOf(last, err)), e.kubeconfig, e.raw.CurrentContext, namespace.Name)
	}
	return nil
}

// blocking returns why a namespace is not deleted.
func blocking(namespace *corev1.Namespace, err error) string {
	if namespace.DeletionTimestamp == nil {
		return err.Error() + "; delete it with kubectl"
	}
	var conditions []string
	for _, c := range namespace.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			conditions = append(conditions, fmt.Sprintf("%s: %s", c.Type, c.Message))
		}
	}
	if len(conditions) == 0 {
		return "its deletion is in progress; nothing more is needed unless it stays"
	}
	return "its deletion is blocked; " + strings.Join(conditions, "; ")
}

// firstOf returns the first error that is not nil.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
