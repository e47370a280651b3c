// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
)

// The kinds of workloads.
const (
	kind    = plugin.KindLeaderWorkerSet
	kindSet = plugin.KindDisaggregatedSet
)

// kind returns the workload's kind. Clients return a LeaderWorkerSet without it.
func (s *Inventory) kind() string { return cmp.Or(s.Workload.Kind, kind) }

// Paths in a LeaderWorkerSet.
const (
	templateField = "spec.leaderWorkerTemplate"
	rollingField  = "spec.rolloutStrategy.rollingUpdateConfiguration"
)

// template is a pod template and its path.
type template struct {
	*corev1.PodTemplateSpec

	field string
	// leader: leaders are created from it.
	leader bool
}

// leader returns the template of leaders.
func (s *Inventory) leader() template {
	t := &s.Workload.Spec.LeaderWorkerTemplate
	if t.LeaderTemplate != nil {
		return template{t.LeaderTemplate, templateField + ".leaderTemplate", true}
	}
	return template{&t.WorkerTemplate, templateField + ".workerTemplate", true}
}

// templates returns all pod templates, of all roles.
func (s *Inventory) templates() (all []template) {
	for i := range s.Roles {
		all = append(all, s.role(i).templates()...)
	}
	if len(all) > 0 {
		return all
	}
	all = append(all, s.leader())
	if t := &s.Workload.Spec.LeaderWorkerTemplate; t.LeaderTemplate != nil && ptr.Deref(t.Size, 1) > 1 {
		all = append(all, template{&t.WorkerTemplate, templateField + ".workerTemplate", false})
	}
	return all
}

// container is a container that runs as long as its pod.
type container struct {
	*corev1.Container

	field string
}

// containers returns those that run as long as the pod, sidecars last.
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

// first returns a field of the first container, which is assumed to serve.
func (t template) first(field string) string { return t.field + ".spec.containers[0]." + field }

func replicasOf(w *lws.LeaderWorkerSet) int { return int(ptr.Deref(w.Spec.Replicas, 1)) }
