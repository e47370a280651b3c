// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// kind is the workload's.
const kind = "LeaderWorkerSet"

// Where things are in a LeaderWorkerSet.
const (
	templateField = "spec.leaderWorkerTemplate"
	rollingField  = "spec.rolloutStrategy.rollingUpdateConfiguration"
)

// template is a pod template and where it is.
type template struct {
	*corev1.PodTemplateSpec

	field string
	// leader says that leaders are made of it.
	leader bool
}

// leader is the template of the pods that serve.
func (s *Snapshot) leader() template {
	t := &s.Workload.Spec.LeaderWorkerTemplate
	if t.LeaderTemplate != nil {
		return template{t.LeaderTemplate, templateField + ".leaderTemplate", true}
	}
	return template{&t.WorkerTemplate, templateField + ".workerTemplate", true}
}

// templates are all of which pods are made.
func (s *Snapshot) templates() []template {
	all := []template{s.leader()}
	if t := &s.Workload.Spec.LeaderWorkerTemplate; t.LeaderTemplate != nil && ptr.Deref(t.Size, 1) > 1 {
		all = append(all, template{&t.WorkerTemplate, templateField + ".workerTemplate", false})
	}
	return all
}

// container is one that runs as long as its pod.
type container struct {
	*corev1.Container

	field string
}

// containers are those that run as long as the pod, sidecars last.
func (t template) containers() []container {
	var all []container
	for i := range t.Spec.Containers {
		all = append(all, container{&t.Spec.Containers[i], fmt.Sprintf("%s.spec.containers[%d]", t.field, i)})
	}
	for i := range t.Spec.InitContainers {
		c := &t.Spec.InitContainers[i]
		if ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			all = append(all, container{c, fmt.Sprintf("%s.spec.initContainers[%d]", t.field, i)})
		}
	}
	return all
}

// first is the field of the container that serves, as far as anybody can tell.
func (t template) first(field string) string { return t.field + ".spec.containers[0]." + field }

func replicasOf(w *lws.LeaderWorkerSet) int { return int(ptr.Deref(w.Spec.Replicas, 1)) }
