// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"maps"
	"slices"
)

func gateRules() []Rule {
	return []Rule{
		{
			ID: "QueueGatesGroups", Severity: warning,
			Title: "Kueue admits the groups",
			Why: "Each new group is a separate workload that waits for the quota of its queue, also when it replaces another. Another workload " +
				"may be admitted with the released quota, and the progress deadline keeps running meanwhile",
			Details: "Found by the label `kueue.x-k8s.io/queue-name` of the workload or its templates. Kueue's webhook refuses a template with other " +
				"requests, ports, node selectors, affinity, tolerations, priority, or another number of containers: delete and create the workload for it",
			Fix:   "Check that the ClusterQueue (its nominalQuota or borrowing limit) admits the additional groups, and that nothing preempts them",
			Check: queueGates,
		},
		{
			ID: "GangSpansGroups", Severity: warning,
			Title: "All groups are in one gang",
			Why: "The templates name one PodGroup, so the pods of a release join the gang of those that run: its minimum may be met by old " +
				"groups while a new one is incomplete, or new ones wait for pods that are never created",
			Details: "Found by `scheduling.k8s.io/group-name` (Volcano), `scheduling.x-k8s.io/pod-group` and " +
				"`pod-group.scheduling.sigs.k8s.io` (coscheduling) in the metadata of the templates, and by `schedulingGroup` in their spec. " +
				"What LWS itself sets on pods is one gang per group, as intended",
			Fix:   "Remove it from the templates, and let LeaderWorkerSet make one PodGroup per group (gangSchedulingManagement in its configuration)",
			Check: gangSpans,
		},
		{
			ID: "SchedulingGated", Severity: warning,
			Title: "The templates have scheduling gates",
			Why:   "Pods stay SchedulingGated until the gates are removed from each of them, for every group that a release creates",
			Fix:   "Remove schedulingGates from the templates, unless a controller removes them within the progress deadline",
			Check: func(s *Inventory) []Hit {
				var hits []Hit
				for _, t := range s.templates() {
					if n := len(t.Spec.SchedulingGates); n > 0 {
						hits = append(hits, Hit{Field: t.field + ".spec.schedulingGates", Message: fmt.Sprintf("its pods wait for %q to be removed", t.Spec.SchedulingGates[0].Name)})
					}
				}
				return hits
			},
		},
	}
}

// queueLabel names the Kueue queue of a workload.
const queueLabel = "kueue.x-k8s.io/queue-name"

func queueGates(s *Inventory) []Hit {
	message := func(queue string) string {
		text := fmt.Sprintf("its groups wait for admission by queue %s", queue)
		if n := s.Peak().Groups(); n > 0 {
			text += fmt.Sprintf(", %d more than now at the peak of %s", n, s.style())
		}
		return text
	}
	if queue := s.Workload.Labels[queueLabel]; queue != "" {
		return one(Hit{Field: field("metadata.labels", queueLabel), Message: message(queue)})
	}
	var hits []Hit
	for _, t := range s.templates() {
		if queue := t.Labels[queueLabel]; queue != "" {
			hits = append(hits, Hit{Field: field(t.field+".metadata.labels", queueLabel), Message: message(queue)})
		}
	}
	return hits
}

// gangMarks are the labels and annotations by which gang schedulers know the gang of a pod.
var gangMarks = []string{"scheduling.k8s.io/group-name", "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/name"}

func gangSpans(s *Inventory) []Hit {
	var hits []Hit
	for _, t := range s.templates() {
		for _, m := range []meta{{"labels", t.Labels}, {"annotations", t.Annotations}} {
			for _, key := range slices.Sorted(maps.Keys(m.values)) {
				if slices.Contains(gangMarks, key) {
					hits = append(hits, Hit{Field: field(t.field+".metadata."+m.name, key), Message: fmt.Sprintf("every pod of every group is in PodGroup %s", m.values[key])})
				}
			}
		}
		if g := t.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
			hits = append(hits, Hit{Field: t.field + ".spec.schedulingGroup.podGroupName", Message: fmt.Sprintf("every pod of every group is in PodGroup %s", *g.PodGroupName)})
		}
	}
	return hits
}

// meta is the labels or the annotations of an object.
type meta struct {
	name   string
	values map[string]string
}

// field returns the path of a key of a map.
func field(path, key string) string { return fmt.Sprintf("%s[%q]", path, key) }
