// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"
)

// pause is an image that any node can pull, in two versions.
const (
	oldPause = "registry.k8s.io/pause:3.9"
	newPause = "registry.k8s.io/pause:3.10"
)

// scenesAtHand are the steps of the demo in the user's own cluster. It changes nothing outside of one namespace, so the driver has the
// user's permissions: those of config/base would be cluster roles.
func (s *stage) scenesAtHand() []scene {
	return []scene{
		{"Your cluster: a namespace of its own, which is deleted at the end", s.borrow},
		{"A LeaderWorkerSet: 4 groups of 2 pods that only wait (" + oldPause + ")", s.deploy},
		{"The Lockstep driver, on a unix socket, for this namespace, with your permissions", func(ctx context.Context) error {
			return s.serveWith(ctx, func(_ context.Context, args ...string) (string, error) {
				return s.startWith(s.script.kubeconfig, append(args, "--namespace", s.namespace)...)
			})
		}},
		{"Adopt: from now on a template change moves no group by itself", s.adopt},
		{"A new image, as from GitOps. No group moves", s.edit},
		{"The release: batch by batch, over gRPC", s.release},
		{"The result: every group at the new revision, no canary, the hold", s.summary},
	}
}

// borrow creates a namespace in the cluster of the kubeconfig, which must have LeaderWorkerSet.
func (s *stage) borrow(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.script.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	if err := s.connect(config); err != nil {
		return err
	}
	if _, err := s.core.Discovery().ServerResourcesForGroupVersion(lws.GroupVersion.String()); apierrors.IsNotFound(err) {
		return fmt.Errorf("LeaderWorkerSet is not installed in %s: install it, and run the demo again", config.Host)
	} else if err != nil {
		return fmt.Errorf("reach %s: %w", config.Host, err)
	}
	if s.dir, err = os.MkdirTemp("", "lockstep-demo-"); err != nil {
		return fmt.Errorf("create a directory for the driver's socket: %w", err)
	}
	created, err := s.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "lockstep-demo-"},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a namespace: %w", err)
	}
	s.namespace = created.Name
	fmt.Fprintf(s.out, "namespace %s in %s\n", s.namespace, config.Host)
	return nil
}

// createPausing creates the workload with containers that any cluster can run.
func (s *stage) createPausing(ctx context.Context) error {
	var w lws.LeaderWorkerSet
	if err := yaml.UnmarshalStrict(workload, &w); err != nil {
		return fmt.Errorf("decode workload.yaml: %w", err)
	}
	w.Spec.StartupPolicy = lws.LeaderCreatedStartupPolicy // the typed client sends an empty one
	template := &w.Spec.LeaderWorkerTemplate
	for _, pod := range []*corev1.PodTemplateSpec{template.LeaderTemplate, &template.WorkerTemplate} {
		pod.Spec.Containers[0].Image, pod.Spec.Containers[0].Resources = oldPause, corev1.ResourceRequirements{}
	}
	_, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(s.namespace).Create(ctx, &w, metav1.CreateOptions{})
	return err
}

// giveBack deletes the namespace, while the driver still runs: it removes the finalizer of a canary.
func (s *stage) giveBack() {
	if s.script.kubeconfig == "" || s.namespace == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	namespaces := s.core.CoreV1().Namespaces()
	err := namespaces.Delete(ctx, s.namespace, metav1.DeleteOptions{})
	if err == nil {
		err = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			_, err := namespaces.Get(ctx, s.namespace, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
	}
	if err != nil {
		fmt.Fprintf(s.out, "what the demo created is left: kubectl delete namespace %s (%v)\n", s.namespace, err)
		return
	}
	fmt.Fprintf(s.out, "namespace %s is deleted\n", s.namespace)
}
