// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Each rule is broken by a history made for it, and by no other: an observer that notices nothing proves nothing.
func TestReplayNoticesEachBreach(t *testing.T) {
	held := &lws.RollingUpdateConfiguration{Partition: ptr.To[int32](holdPartition), MaxUnavailable: intstr.FromInt32(1)}
	native := &lws.RollingUpdateConfiguration{Partition: ptr.To[int32](0), MaxUnavailable: intstr.FromInt32(1)}
	stable := func(phase string, c *lws.RollingUpdateConfiguration) *lws.LeaderWorkerSet {
		s := model("m", 2, 1)
		s.Spec.RolloutStrategy.RollingUpdateConfiguration = c
		s.Annotations = map[string]string{recordAnnotation: fmt.Sprintf(
			`{"version":1,"saved":{"maxUnavailable":1,"maxSurge":0},"release":{"id":"r","stableRevision":"old","updateRevision":"new","phase":%q}}`, phase)}
		return s
	}
	canary := func(name string, replicas int32, target string) *lws.LeaderWorkerSet {
		s := model(name, replicas, 1)
		s.Labels = map[string]string{roleLabel: "canary", stableLabel: "m", "lockstep.dev/revision": "new"}
		s.Annotations = map[string]string{targetAnnotation: target}
		return s
	}
	pod := func(set, index, revision string, ready bool) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: set + "-" + index, Labels: map[string]string{
			lws.SetNameLabelKey: set, lws.GroupIndexLabelKey: index, lws.WorkerIndexLabelKey: "0", lws.RevisionKey: revision,
		}}}
		status := corev1.ConditionFalse
		if ready {
			status = corev1.ConditionTrue
		}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
		return p
	}
	going := func(o runtime.Object) runtime.Object {
		o.(metav1.Object).SetDeletionTimestamp(&metav1.Time{})
		return o
	}
	const none, half, all = "", `{"groups":"50%"}`, `{"groups":"100%"}`
	old0, old1 := pod("m", "0", "old", true), pod("m", "1", "old", true)
	begun := []runtime.Object{stable("Progressing", held), old0, old1, canary("c", 0, none)}
	full := append(begun[:4:4], canary("c", 2, all))
	promoting := append(full[:5:5], stable("Promoting", native))

	for _, test := range []struct {
		broken  rule
		history []runtime.Object
	}{
		{"", append(promoting[:6:6], pod("m", "1", "new", false), pod("m", "1", "new", true), pod("m", "0", "new", false), pod("m", "0", "new", true),
			stable("Promoted", held), going(canary("c", 2, all)))},
		{"", append(full[:5:5], stable("RollingBack", held), going(canary("c", 2, all)))},
		{ruleOneCanary, append(begun[:4:4], canary("d", 0, none))},
		{ruleCanarySize, append(begun[:4:4], canary("c", 2, half))},
		{ruleCanarySize, append(full[:5:5], pod("c", "0", "new", true), pod("c", "1", "new", true), pod("c", "2", "new", true))},
		{ruleStableKept, append(begun[:4:4], going(pod("m", "1", "old", true)))},
		{ruleStableKept, []runtime.Object{stable("Progressing", held), old0, pod("m", "1", "new", true)}},
		{ruleAvailable, append(promoting[:6:6], pod("m", "1", "new", false), pod("m", "0", "new", false))},
		{ruleSurge, append(promoting[:6:6], pod("m", "2", "new", false))},
		{ruleCanaryStays, append(promoting[:6:6], canary("c", 1, all))},
		{ruleCanaryStays, append(promoting[:6:6], stable("Promoting", native), canary("c", 0, all))},
		{ruleIntent, []runtime.Object{stable("RollingBack", held), old0, old1, canary("c", 0, none)}},
		{ruleIntent, append(full[:5:5], going(canary("c", 2, all)))},
		{ruleCanaryStays, append(promoting[:6:6], stable("Returning", native), canary("c", 0, all))},
		{ruleHold, append(promoting[:6:6], stable("Returning", held))},
		{ruleHold, append(begun[:4:4], stable("Progressing", native))},
		{ruleHold, append(promoting[:6:6], stable("Promoting", &lws.RollingUpdateConfiguration{Partition: ptr.To[int32](0), MaxUnavailable: intstr.FromInt32(2)}))},
	} {
		r := newReplay(nil)
		for i, o := range test.history {
			o = o.DeepCopyObject()
			o.(metav1.Object).SetResourceVersion(fmt.Sprint(i))
			r.step(happening{version: uint64(i), object: o})
		}
		found := map[string]bool{}
		for _, v := range r.violations {
			name, _, _ := strings.Cut(v, ": ")
			found[name] = true
		}
		if test.broken == "" && len(found) > 0 || test.broken != "" && (len(found) != 1 || !found[string(test.broken)]) {
			t.Errorf("broken is %q, found %q", test.broken, r.violations)
		}
	}
}
