// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Each rule is violated by a history made for it, and only this rule is: an observer that reports nothing would prove nothing.
//
// Proves (test): Safety rule 5, checked after every event: the observer reports each violation.
func TestReplayReportsViolations(t *testing.T) {
	stable := func(phase string, partition int32, changes ...func(*lws.LeaderWorkerSet)) *lws.LeaderWorkerSet {
		return inRelease(phase, partition, "{}", "", changes...)
	}
	deleting := func(o runtime.Object) runtime.Object { return deletedAt(o, "12:00:00") }
	faster := func(s *lws.LeaderWorkerSet) {
		s.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxUnavailable = intstr.FromInt32(2)
	}
	second := greenSet(0, "")
	second.Name = "second"
	const held, native = holdPartition, 0
	const none, half, all = "", "50%", "100%"
	old0, old1 := podAt("m", 0, "old", true), podAt("m", 1, "old", true)
	begun := []runtime.Object{stable("Progressing", held), old0, old1, greenSet(0, none)}
	full := append(begun[:4:4], greenSet(2, all))
	promoting := append(full[:5:5], stable("Promoting", native))

	for _, test := range []struct {
		violated rule
		history  []runtime.Object
	}{
		{"", append(promoting[:6:6], podAt("m", 1, "new", false), podAt("m", 1, "new", true), podAt("m", 0, "new", false), podAt("m", 0, "new", true),
			stable("Promoted", held), deleting(greenSet(2, all)))},
		{"", append(full[:5:5], stable("CleaningUp", held), deleting(greenSet(2, all)))},
		{"", append(full[:5:5], podAt("g", 0, "new", true), podAt("g", 1, "new", true), stable("Progressing", held, groups(1)), stable("Progressing", held, groups(0)))},
		{ruleOneCanary, append(begun[:4:4], second)},
		{ruleCanarySize, append(begun[:4:4], greenSet(2, half))},
		{ruleCanarySize, append(full[:5:5], podAt("g", 0, "new", true), podAt("g", 1, "new", true), podAt("g", 2, "new", true))},
		{ruleStableUntouched, append(begun[:4:4], deleting(podAt("m", 1, "old", true)))},
		{ruleStableUntouched, []runtime.Object{stable("Progressing", held), old0, podAt("m", 1, "new", true)}},
		{ruleAvailable, append(promoting[:6:6], podAt("m", 1, "new", false), podAt("m", 0, "new", false))},
		{ruleSurge, append(promoting[:6:6], podAt("m", 2, "new", false))},
		{ruleCanaryStays, append(promoting[:6:6], greenSet(1, all))},
		{ruleCanaryStays, append(promoting[:6:6], stable("Promoting", native), greenSet(0, all))},
		{ruleIntent, []runtime.Object{stable("CleaningUp", held), old0, old1, greenSet(0, none)}},
		{ruleIntent, append(full[:5:5], deleting(greenSet(2, all)))},
		{ruleCanaryStays, append(promoting[:6:6], stable("RollingBack", native), greenSet(0, all))},
		{ruleHold, append(begun[:4:4], stable("Progressing", native))},
		{ruleHold, append(promoting[:6:6], stable("Promoting", native, faster))},
	} {
		mustViolate(t, test.violated, test.history)
	}
}

// mustViolate fails unless a history violates this rule and no other; "": no rule at all.
func mustViolate(t *testing.T, violated rule, history []runtime.Object) {
	t.Helper()
	r := newReplay(nil)
	for i, o := range history {
		o = o.DeepCopyObject()
		o.(metav1.Object).SetResourceVersion(fmt.Sprint(i))
		r.step(clusterEvent{version: uint64(i), object: o})
	}
	found := map[string]bool{}
	for _, v := range r.violations {
		name, _, _ := strings.Cut(v, ": ")
		found[name] = true
	}
	assert.False(t, violated == "" && len(found) > 0 || violated != "" && (len(found) != 1 || !found[string(violated)]),
		"want a violation of %q, got %q", violated, r.violations)
}

// inRelease returns a workload with 2 groups of one pod and maxUnavailable 1, in a release.
func inRelease(phase string, partition int32, policy, target string, changes ...func(*lws.LeaderWorkerSet)) *lws.LeaderWorkerSet {
	s := model("m", 2, 1)
	s.Spec.RolloutStrategy.RollingUpdateConfiguration = &lws.RollingUpdateConfiguration{
		Partition: ptr.To(partition), MaxUnavailable: intstr.FromInt32(1),
	}
	s.Annotations = map[string]string{recordAnnotation: fmt.Sprintf(`{"version":1,"saved":{"maxUnavailable":1,"maxSurge":0},"release":{`+
		`"id":"r","stableRevision":"old","updateRevision":"new","phase":%q,"phaseAt":"2026-01-01T12:00:00Z","policy":%s,"target":{"groups":%q}}}`,
		phase, policy, target)}
	for _, change := range changes {
		change(s)
	}
	return s
}

// podAt returns the pod of a group of one.
func podAt(set string, index int, revision string, ready bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(set, "-", index), Labels: map[string]string{
		lws.SetNameLabelKey: set, lws.GroupIndexLabelKey: fmt.Sprint(index), lws.WorkerIndexLabelKey: "0", lws.RevisionKey: revision,
	}}}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	return p
}

// deletedAt sets an object's deletion timestamp to this time of day.
func deletedAt(o runtime.Object, clock string) runtime.Object {
	at, err := time.Parse(time.RFC3339, "2026-01-01T"+clock+"Z")
	if err != nil {
		panic(err)
	}
	o.(metav1.Object).SetDeletionTimestamp(&metav1.Time{Time: at})
	return o
}

// TestReplayReportsViolations for releases in place.
//
// Proves (test): Safety rule 5, checked after every event: the observer reports each violation.
func TestReplayReportsViolationsInPlace(t *testing.T) {
	set := func(phase string, partition int32, target string, changes ...func(*lws.LeaderWorkerSet)) *lws.LeaderWorkerSet {
		return inRelease(phase, partition, `{"style":"STYLE_PARTITION"}`, target, changes...)
	}
	pod := func(index int, revision string, ready bool) *corev1.Pod { return podAt("m", index, revision, ready) }
	deleting := func(index int, revision string) runtime.Object {
		return deletedAt(pod(index, revision, true), "12:00:00")
	}
	faster := func(s *lws.LeaderWorkerSet) {
		s.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxUnavailable = intstr.FromInt32(2)
	}
	surging := func(s *lws.LeaderWorkerSet) {
		s.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxSurge = intstr.FromInt32(1)
	}

	begun := []runtime.Object{set("Progressing", holdPartition, "0"), pod(0, "old", true), pod(1, "old", true)}
	half := append(begun[:3:3], set("Progressing", 1, "50%"), deleting(1, "old"), pod(1, "new", false), pod(1, "new", true))
	all := append(half[:7:7], set("Progressing", 0, "100%"), deleting(0, "old"), pod(0, "new", false), pod(0, "new", true))
	more := append(half[:7:7], set("Progressing", 1, "50%", groups(4)), pod(2, "new", true), pod(3, "new", true), set("Progressing", 2, "50%", groups(4)))
	for name, test := range map[string]struct {
		violated rule
		history  []runtime.Object
	}{
		"promoted":             {"", append(all[:11:11], set("Promoting", 0, "100%"), set("Promoted", holdPartition, "100%"))},
		"rolled back":          {"", append(half[:7:7], set("RollingBack", holdPartition, "50%"), deleting(1, "new"), pod(1, "old", false), pod(1, "old", true), set("CleaningUp", holdPartition, "50%"))},
		"scaled up":            {"", more},
		"recreated by LWS":     {"", append(half[:7:7], set("Progressing", 0, "100%"), deleting(1, "new"), deleting(0, "old"))},
		"not ready before":     {"", append(half[:6:6], set("RollingBack", holdPartition, "50%"), deleting(1, "new"), pod(1, "old", true))},
		"skips broken groups":  {"", append(all[:10:10], set("RollingBack", 1, "100%", faster), deleting(1, "new"), pod(1, "old", true))},
		"ready meanwhile":      {"", append(all[:10:10], set("RollingBack", 1, "100%", faster), pod(0, "new", true), set("RollingBack", 1, "100%", faster))},
		"skips ready groups":   {ruleHold, append(all[:11:11], set("RollingBack", 1, "100%", faster))},
		"too low a partition":  {ruleHold, append(begun[:3:3], set("Progressing", 0, "50%"))},
		"too fast":             {ruleHold, append(begun[:3:3], set("Progressing", 1, "50%", faster))},
		"surge in a batch":     {ruleHold, append(begun[:3:3], set("Progressing", 1, "50%", surging))},
		"promoted too fast":    {ruleHold, append(all[:11:11], set("Promoting", 0, "100%", faster))},
		"no hold after it":     {ruleHold, append(half[:7:7], set("CleaningUp", 1, "50%"))},
		"more than the batch":  {ruleBatch, append(half[:7:7], pod(0, "new", true))},
		"more than scaled up":  {ruleBatch, append(more[:11:11], pod(0, "new", true))},
		"two at a time":        {ruleDown, append(begun[:3:3], set("Progressing", 0, "100%"), deleting(1, "old"), deleting(0, "old"))},
		"two not ready":        {ruleDown, append(half[:6:6], set("Progressing", 0, "100%"), pod(0, "new", false))},
		"two restarted":        {ruleDown, append(all[:11:11], set("RollingBack", holdPartition, "100%"), deleting(1, "new"), deleting(0, "new"))},
		"next group too early": {ruleDown, append(all[:11:11], set("RollingBack", holdPartition, "100%"), deleting(1, "new"), pod(1, "old", false), deleting(0, "new"))},
		"stable group deleted": {ruleStableUntouched, append(half[:7:7], deleting(0, "old"))},
		"stable restarted":     {ruleStableUntouched, append(half[:7:7], set("RollingBack", holdPartition, "50%"), deleting(0, "old"))},
		"surge in promotion":   {ruleSurge, append(all[:11:11], set("Promoting", 0, "100%"), pod(2, "new", true))},
		"a canary":             {ruleIntent, append(begun[:3:3], greenSet(0, "0"))},
	} {
		t.Run(name, func(t *testing.T) { mustViolate(t, test.violated, test.history) })
	}
}

// greenSet returns the second set of the workload m.
func greenSet(replicas int32, target string) *lws.LeaderWorkerSet {
	s := model("g", replicas, 1)
	s.Labels = map[string]string{roleLabel: "canary", stableLabel: "m", "lockstep.dev/revision": "new"}
	s.Annotations = map[string]string{targetAnnotation: fmt.Sprintf(`{"groups":%q}`, target)}
	return s
}

// TestReplayReportsViolations for blue-green.
//
// Proves (test): Safety rule 5, checked after every event: the observer reports each violation.
func TestReplayReportsViolationsBlueGreen(t *testing.T) {
	const plain, routed = `{"style":"STYLE_BLUE_GREEN","blueGreen":{"scaleDownDelay":"30s"}}`, `{"style":"STYLE_BLUE_GREEN","traffic":{}}`
	set := func(phase string, partition int32, changes ...func(*lws.LeaderWorkerSet)) *lws.LeaderWorkerSet {
		return inRelease(phase, partition, plain, "50%", changes...)
	}
	route := func(phase string, partition int32, changes ...func(*lws.LeaderWorkerSet)) *lws.LeaderWorkerSet {
		return inRelease(phase, partition, routed, "50%", changes...)
	}
	atOnce := func(s *lws.LeaderWorkerSet) {
		s.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxUnavailable = intstr.FromString("100%")
	}
	ingress := func(name, service string) *networkingv1.Ingress {
		return &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressSpec{
			DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: service}},
		}}
	}
	share := func(percent string) *networkingv1.Ingress {
		i := ingress("m-canary", "green")
		i.Annotations = map[string]string{"nginx.ingress.kubernetes.io/canary": "true", "nginx.ingress.kubernetes.io/canary-weight": percent}
		return i
	}
	service := func(name, set string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Selector: map[string]string{lws.SetNameLabelKey: set}}}
	}
	old := func(index int) *corev1.Pod { return podAt("m", index, "old", true) }
	fresh := func(set string, index int) *corev1.Pod { return podAt(set, index, "new", true) }
	deleted := func(index int) runtime.Object { return deletedAt(old(index), "12:00:00") }
	begin := func(s *lws.LeaderWorkerSet) []runtime.Object {
		return []runtime.Object{s, old(0), old(1), greenSet(0, "0"), greenSet(1, "50%"), fresh("g", 0)}
	}
	begun, begunRouted := begin(set("Progressing", holdPartition)), begin(route("Progressing", holdPartition))
	growing := append(begun[:6:6], set("Promoting", holdPartition))
	green := append(growing[:7:7], greenSet(2, "50%"), fresh("g", 1))
	rolled := append(green[:9:9], set("Promoting", 0), deleted(1), fresh("m", 1), deleted(0), fresh("m", 0), set("Promoted", holdPartition))
	switched := append(begunRouted[:6:6], route("Promoting", holdPartition), greenSet(2, "50%"), fresh("g", 1), share("100"))
	split := append(begunRouted[:6:6], ingress("m", "blue"), service("blue", "m"), service("green", "g"), share("50"))
	for name, test := range map[string]struct {
		violated rule
		history  []runtime.Object
	}{
		"promoted":                  {"", append(rolled[:15:15], deletedAt(greenSet(2, "50%"), "12:00:30"))},
		"switched":                  {"", append(switched[:10:10], route("Promoting", 0, atOnce), deleted(1), deleted(0), fresh("m", 1), fresh("m", 0), share("0"), route("Promoted", holdPartition))},
		"at once without traffic":   {ruleHold, append(green[:9:9], set("Promoting", 0, atOnce))},
		"at once before the switch": {ruleHold, append(switched[:9:9], share("50"), route("Promoting", 0, atOnce))},
		"at once, set not ready":    {ruleHold, append(switched[:10:10], podAt("g", 1, "new", false), route("Promoting", 0, atOnce))},
		"canary above its target":   {ruleCanarySize, append(begun[:6:6], greenSet(2, "50%"))},
		"canary above replicas":     {ruleCanarySize, append(growing[:7:7], greenSet(3, "50%"))},
		"group deleted in a batch":  {ruleStableUntouched, append(begun[:6:6], deleted(1))},
		"before set is complete":    {ruleStableUntouched, append(growing[:7:7], deleted(1))},
		"above twice the replicas":  {ruleDouble, append(green[:9:9], old(2))},
		"surge without maxSurge":    {ruleSurge, append(green[:8:8], set("Promoting", 0), podAt("m", 2, "new", false))},
		"canary scaled down early":  {ruleCanaryStays, append(green[:9:9], set("Promoting", 0), greenSet(1, "50%"))},
		"deleted within the delay":  {ruleDelay, append(rolled[:15:15], deletedAt(greenSet(2, "50%"), "12:00:10"))},
		"deleted while it grows":    {ruleIntent, append(growing[:7:7], deletedAt(greenSet(1, "50%"), "12:00:00"))},
	} {
		t.Run(name, func(t *testing.T) { mustViolate(t, test.violated, test.history) })
	}
	lost := podAt("g", 0, "new", false)
	mustViolate(t, "", append(split[:10:10], lost, share("0"), deletedAt(lost.DeepCopy(), "12:00:00")))
	mustViolate(t, ruleServed, append(split[:9:9], lost, share("50")))
	mustViolate(t, ruleServed, append(split[:10:10], deletedAt(fresh("g", 0), "12:00:00")))
	mustViolate(t, ruleServed, append(split[:10:10], service("blue", "other")))
}

// TestReplayReportsViolations for roles. A group that its child is to lose when it becomes ready is no capacity, nor is one without all its pods.
//
// Proves (test): Safety rule 5, checked after every event: the observer reports each violation.
func TestReplayReportsViolationsOfRoles(t *testing.T) {
	labels := map[string]string{disaggregated.SetNameLabelKey: "m", disaggregated.RoleLabelKey: "decode"}
	spec := func(replicas int32) *disaggregated.DisaggregatedSet {
		s := &disaggregated.DisaggregatedSet{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{recordAnnotation: `{"version":1}`}}}
		role := disaggregated.DisaggregatedRoleSpec{Name: "decode"}
		role.Spec = model("", replicas, 1).Spec
		role.Spec.RolloutStrategy.RollingUpdateConfiguration = &lws.RollingUpdateConfiguration{MaxSurge: intstr.FromInt32(1)}
		s.Spec.Roles = []disaggregated.DisaggregatedRoleSpec{role}
		return s
	}
	child := func(name string, replicas int32) *lws.LeaderWorkerSet {
		return model(name, replicas, 1, func(s *lws.LeaderWorkerSet) { s.Labels = labels })
	}
	group := func(name string, ready bool) *corev1.Pod {
		p := podAt(name, 0, name, ready)
		maps.Copy(p.Labels, labels)
		return p
	}
	replaces := func() *disaggregated.DisaggregatedSet {
		s := spec(1)
		s.Annotations[recordAnnotation] = `{"version":1,"release":{"id":"r","phase":"HandingOver","policy":{"style":"STYLE_PARTITION"}}}`
		s.Spec.Roles[0].Spec.RolloutStrategy.RollingUpdateConfiguration = &lws.RollingUpdateConfiguration{MaxUnavailable: intstr.FromInt32(1)}
		return s
	}
	serves := []runtime.Object{spec(1), child("old", 1), group("old", true), child("new", 0)}
	gone := deletedAt(group("old", true), "12:00:00")
	mustViolate(t, "", append(serves[:4:4], child("new", 1), group("new", true), child("old", 0), gone))
	mustViolate(t, ruleRoles, append(serves[:4:4], child("new", 1), child("old", 0), gone))
	emptied := append(serves[:4:4], spec(0), child("old", 0), gone, spec(1), child("new", 1), group("new", false))
	mustViolate(t, ruleRoles, append(emptied[:10:10], group("new", true), child("new", 0), deletedAt(group("new", true), "12:00:01")))
	mustViolate(t, "", append(emptied[:10:10], child("new", 0), group("new", true), child("old", 1), deletedAt(group("new", true), "12:00:01")))
	leader, worker := group("new", true), group("new", true)
	leader.Annotations = map[string]string{lws.SizeAnnotationKey: "2"}
	worker.Name, worker.Labels[lws.WorkerIndexLabelKey] = leader.Name+"-1", "1"
	lost := worker.DeepCopy()
	lost.Status.Conditions[0].Status = corev1.ConditionFalse
	mustViolate(t, "", append(emptied[:10:10], leader, child("new", 0), deletedAt(leader.DeepCopy(), "12:00:01"))) // its worker was never ready
	mustViolate(t, ruleRoles, append(emptied[:10:10], leader, worker, lost))

	ending := []runtime.Object{replaces(), child("old", 1), group("old", true), child("old", 0), deletedAt(group("old", true), "12:00:00")}
	mustViolate(t, ruleRoom, append(ending[:5:5], child("new", 1), group("new", false)))
}
