// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// maxPodMessage and maxPodReason are how many bytes of the message and the reason why a pod is not ready are kept. There may be
// thousands of pods.
const maxPodMessage, maxPodReason = 256, 64

// Pod is the cached form of a pod of a group: a few hundred bytes instead of several thousand.
type Pod struct {
	metav1.ObjectMeta

	// Group is its group-index label.
	Group string
	// Revision is its template-revision-hash label.
	Revision string
	// Serving is true while requests may go to it.
	Serving bool
	// Terminating is true once its deletion was requested.
	Terminating bool

	set     string // the LeaderWorkerSet's name
	child   unique.Handle[childLabels]
	leader  bool
	address string // a leader's IP while it runs
	// hostNetwork is true if that is its node's IP.
	hostNetwork bool
	size        int // pods of its group, from LWS's annotation; 0: not annotated
	subdomain   string
	// Rollout is the rollout that its labels name. Zero means none.
	Rollout plan.RolloutLabels

	ready            bool
	terminatingReady bool      // it is being deleted, and has the condition Ready
	since            time.Time // when it became ready, or when it ceased to be
	reason, message  string    // why it is not ready

	exit *exit // nil: none of its containers has failed, or it is being deleted
}

// childLabels are the labels of a child of a DisaggregatedSet, and of its pods. The set is empty for others.
type childLabels struct{ set, role, revision, slice string }

func childLabelsOf(labels map[string]string) childLabels {
	return childLabels{labels[disaggregated.SetNameLabelKey], labels[disaggregated.RoleLabelKey], labels[disaggregated.RevisionLabelKey], labels[sliceLabel]}
}

// sliceIndex returns the index of the slice. LWS v0.9.0 has no label: it is the first.
func (l childLabels) sliceIndex() int {
	i, _ := strconv.Atoi(l.slice)
	return i
}

// setKey returns the key of the DisaggregatedSet.
func (l childLabels) setKey(namespace string) types.NamespacedName {
	return KeyFor(KindSet, namespace, l.set)
}

// exit is the failure of a container.
type exit struct {
	// text describes it, for a message.
	text string
	// revision is the pod's.
	revision string
	at       time.Time
}

// NewPod returns the cached form of a pod. It is the informer's transform.
func NewPod(pod *corev1.Pod) *Pod {
	v := podOf(pod)
	v.Serving = pod.Labels[record.ServingLabel] == record.Serving
	v.Rollout = rolloutLabels(pod.Labels)
	// The IP of a pod that has ended may be another pod's.
	if v.leader && pod.Status.Phase == corev1.PodRunning {
		v.address = strings.Clone(pod.Status.PodIP)
		v.hostNetwork = pod.Spec.HostNetwork || v.address != "" && v.address == pod.Status.HostIP
	}
	// With an unreadable size the workload's own is used.
	v.size, _ = strconv.Atoi(pod.Annotations[lws.SizeAnnotationKey])
	v.subdomain = intern(pod.Spec.Subdomain)
	v.ready, v.since = podReady(pod)
	if v.Terminating {
		v.ready, v.terminatingReady = false, v.ready
	}
	if !v.ready {
		v.reason, v.message = podObstacle(pod)
		v.reason, v.message = intern(Shorten(v.reason, maxPodReason)), intern(Shorten(v.message, maxPodMessage))
	}
	v.exit = podExit(pod)
	return v
}

// unreadablePod returns the cached form of a pod for which NewPod panics. Its group is not ready, and reports it.
func unreadablePod(obj any) any {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj
	}
	v := podOf(pod)
	v.since, v.reason, v.message = pod.CreationTimestamp.Time, "Unreadable", "the driver can't read this pod, which is a defect: its log has the details"
	return v
}

// podOf returns what tells which group a pod is part of, and whether it stays.
func podOf(pod *corev1.Pod) *Pod {
	return &Pod{
		ObjectMeta: stripMeta(&pod.ObjectMeta), set: intern(pod.Labels[lws.SetNameLabelKey]), Group: intern(pod.Labels[lws.GroupIndexLabelKey]),
		child:    unique.Make(childLabelsOf(pod.Labels)),
		Revision: intern(pod.Labels[lws.RevisionKey]), leader: pod.Labels[lws.WorkerIndexLabelKey] == "0", Terminating: pod.DeletionTimestamp != nil,
	}
}

// intern returns a string whose bytes all equal ones have in common.
func intern(s string) string { return unique.Make(s).Value() }

// stripMeta keeps the metadata that the caches need.
func stripMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: strings.Clone(m.Name), Namespace: intern(m.Namespace), UID: types.UID(strings.Clone(string(m.UID))),
		ResourceVersion: strings.Clone(m.ResourceVersion), CreationTimestamp: m.CreationTimestamp,
	}
}

// podReady reports whether the pod is ready by its condition, and since when it serves or not. A pod that is being deleted does not: its endpoints
// are removed.
func podReady(pod *corev1.Pod) (ready bool, since time.Time) {
	since = pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			ready, since = c.Status == corev1.ConditionTrue && pod.Status.Phase == corev1.PodRunning, c.LastTransitionTime.Time
		}
	}
	if pod.DeletionTimestamp != nil {
		// The timestamp is when the grace period ends.
		grace := time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second
		since = pod.DeletionTimestamp.Add(-grace)
	}
	return ready, since
}

// podObstacle returns why a pod is not ready, with Kubernetes' own reason and message if it has some.
func podObstacle(pod *corev1.Pod) (reason, message string) {
	if pod.DeletionTimestamp != nil {
		message = "is being deleted"
		if pod.Spec.NodeName != "" {
			message += " on node " + pod.Spec.NodeName
		}
		return "Terminating", message
	}
	if pod.Status.Phase == corev1.PodFailed {
		reason = cmp.Or(pod.Status.Reason, "PodFailed")
		return reason, strings.TrimSuffix("has failed ("+reason+"): "+pod.Status.Message, ": ")
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return cmp.Or(c.Reason, "Unschedulable"), strings.TrimSpace("unschedulable: " + c.Message)
		}
	}
	// Init containers come first: until they have ended, the others only wait.
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if reason, message := containerObstacle(&statuses[i]); reason != "" {
				return reason, message
			}
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && pod.Status.Phase == corev1.PodRunning {
			return cmp.Or(c.Reason, "NotReady"), cmp.Or(c.Message, "runs, but its readiness probe does not succeed")
		}
	}
	return "Starting", "is starting (" + strings.ToLower(string(pod.Status.Phase)) + ")"
}

// containerObstacle returns what is wrong with a container, by its own status, or "" if there is nothing.
func containerObstacle(c *corev1.ContainerStatus) (reason, message string) {
	// Both reasons are stages of every start.
	if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
		text := fmt.Sprintf("container %s: %s", c.Name, cmp.Or(w.Reason, "waiting"))
		if w.Message != "" {
			text += ": " + w.Message
		}
		if last := c.LastTerminationState.Terminated; last != nil {
			text += fmt.Sprintf(" (last "+exitCode+" %d, %s; %d restarts)", last.ExitCode, cmp.Or(last.Reason, "Error"), c.RestartCount)
		}
		return cmp.Or(w.Reason, "Waiting"), text
	}
	if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
		reason = cmp.Or(t.Reason, "Error")
		return reason, strings.TrimSpace(fmt.Sprintf("container %s: "+exitCode+" %d (%s) %s", c.Name, t.ExitCode, reason, t.Message))
	}
	return "", ""
}

// exitCode is part of each message about an exit.
const exitCode = "exit code"

// podExit returns the last failure of a container. LWS recreates a group of which a container has restarted, and then no pod shows why
// any more.
func podExit(pod *corev1.Pod) (last *exit) {
	// A deletion ends containers with an exit code, too, which is no failure.
	if pod.DeletionTimestamp != nil {
		return nil
	}
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		for _, state := range []corev1.ContainerState{c.LastTerminationState, c.State} {
			if t := state.Terminated; t != nil && t.ExitCode != 0 && (last == nil || t.FinishedAt.After(last.at)) {
				text := fmt.Sprintf("container %s of %s: "+exitCode+" %d (%s)", c.Name, pod.Name, t.ExitCode, cmp.Or(t.Reason, "Error"))
				last = &exit{text: Shorten(text, maxPodMessage), revision: intern(pod.Labels[lws.RevisionKey]), at: t.FinishedAt.Time}
			}
		}
	}
	return last
}

// Shorten returns s as valid UTF-8 of at most limit bytes, with "…" at its end if it was longer. Termination messages may be
// anything, and protobuf refuses invalid text.
func Shorten(s string, limit int) string {
	const more = "…"
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	end := limit - len(more)
	// The cut must not split a rune.
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + more
}
