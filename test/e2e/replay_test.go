// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// The rules that are checked at every instant.
const (
	// ruleOneCanary: a workload never has two canaries, not even while one is going.
	ruleOneCanary rule = "never two canaries"
	// ruleCanarySize: the canary never has more groups than the target means, nor than the workload has.
	ruleCanarySize rule = "canary groups never above what is planned"
	// ruleStableKept: until the promotion no stable group changes its revision or goes.
	ruleStableKept rule = "stable groups are not touched before the promotion"
	// ruleAvailable: in the promotion available groups, the canary's included, never fall below replicas - maxUnavailable.
	// The workload's own alone may, by LWS's doing: it recreates a group that was ready when the garbage collector takes a
	// worker of the group before it, and has gone on to the next group by then. Those instants are counted as dips.
	ruleAvailable rule = "available groups never below replicas - maxUnavailable"
	// ruleSurge: in the promotion the workload never has more groups than replicas + maxSurge.
	ruleSurge rule = "stable groups never above replicas + maxSurge"
	// ruleCanaryStays: the canary's groups stay until the whole promotion is through.
	ruleCanaryStays rule = "canary capacity stays until the promotion is through"
	// ruleIntent: what a release does stands in the record before it is done.
	ruleIntent rule = "intent is durable before its first effect"
	// ruleHold: the hold is off in a promotion only, and LWS then rolls by the user's own settings.
	ruleHold rule = "the hold is off in a promotion only, for the user's own settings"
)

// record is what is read of the annotation.
type record struct {
	Saved   lws.RollingUpdateConfiguration `json:"saved"`
	Release *struct {
		ID             string `json:"id"`
		StableRevision string `json:"stableRevision"`
		UpdateRevision string `json:"updateRevision"`
		Phase          string `json:"phase"`
		Target         *struct {
			Groups string `json:"groups"`
		} `json:"target"`
	} `json:"release"`
}

// rolls says whether the hold is off, so that LWS rolls the user's workload.
func (r *record) rolls() bool { return r.phase() == "Promoting" || r.phase() == "Returning" }

func (r *record) phase() string {
	if r == nil || r.Release == nil {
		return ""
	}
	return r.Release.Phase
}

// replay is the cluster's namespace at one instant, and what led there.
type replay struct {
	sets   map[string]*lws.LeaderWorkerSet
	pods   map[string]*corev1.Pod
	waived map[rule]bool
	// before is each stable workload's number of groups before the last change of it: a driver that had not seen the
	// change yet does what it would have done then.
	before map[string]int
	// whole holds the workloads whose groups have all been available since their promotion began.
	whole map[string]bool
	// released is each stable workload's template as it was when the record named its revision.
	released map[string]string
	// template is each stable workload's before its last change.
	template map[string]string

	checks, dips          int
	completed, rolledBack int
	violations            []string
	lines                 []string
}

func newReplay(waived map[rule]bool) *replay {
	return &replay{
		sets: map[string]*lws.LeaderWorkerSet{}, pods: map[string]*corev1.Pod{}, waived: waived,
		before: map[string]int{}, whole: map[string]bool{}, released: map[string]string{}, template: map[string]string{},
	}
}

func (r *replay) history() string { return strings.Join(r.lines[max(0, len(r.lines)-150):], "\n") }

func (r *replay) check(which rule, ok bool, format string, args ...any) {
	r.checks++
	if ok || r.waived[which] {
		return
	}
	text := fmt.Sprintf(format, args...)
	if n := len(r.lines); n > 0 {
		text += "\n  after " + r.lines[n-1]
	}
	r.violations = append(r.violations, fmt.Sprintf("%s: %s", which, text))
}

// step makes one change and checks every rule.
func (r *replay) step(h happening) {
	switch object := h.object.(type) {
	case *lws.LeaderWorkerSet:
		r.stepSet(object, h)
	case *corev1.Pod:
		r.stepPod(object, h)
	}
	for _, s := range r.sets {
		if s.Labels[roleLabel] == "" {
			r.standing(s)
		}
	}
}

func (r *replay) stepSet(s *lws.LeaderWorkerSet, h happening) {
	old := r.sets[s.Name]
	if old != nil && !h.gone && old.ResourceVersion == s.ResourceVersion {
		return
	}
	if h.gone {
		delete(r.sets, s.Name)
	} else {
		r.sets[s.Name] = s
	}
	r.lines = append(r.lines, fmt.Sprintf("%d set %s gone=%t deleting=%t replicas=%d rolling=%s record=%s target=%s", h.version, s.Name, h.gone,
		s.DeletionTimestamp != nil, replicasOf(s), asJSON(s.Spec.RolloutStrategy.RollingUpdateConfiguration),
		s.Annotations[recordAnnotation], s.Annotations[targetAnnotation]))
	if s.Labels[roleLabel] == "" {
		if !h.gone {
			r.stable(old, s)
		}
		return
	}
	r.canary(old, s, h.gone)
}

// stable checks a change of the user's workload.
func (r *replay) stable(old, s *lws.LeaderWorkerSet) {
	if old != nil && replicasOf(old) != replicasOf(s) {
		r.before[s.Name] = int(replicasOf(old))
		// A scale-down in mid-promotion takes groups that are available while LWS rolls others: it does not count them together.
		delete(r.whole, s.Name)
	}
	r.template[s.Name] = asJSON(cmp.Or(old, s).Spec.LeaderWorkerTemplate)
	now, then := recordOf(s), recordOf(old)
	if now != nil && now.Release != nil && (then == nil || then.Release == nil || then.Release.UpdateRevision != now.Release.UpdateRevision) {
		r.released[s.Name] = asJSON(s.Spec.LeaderWorkerTemplate)
	}
	c := s.Spec.RolloutStrategy.RollingUpdateConfiguration
	if now != nil && !now.rolls() {
		r.check(ruleHold, isHold(c), "%s has %s in phase %q", s.Name, asJSON(c), now.phase())
	}
	if now.rolls() {
		r.check(ruleHold, atUsersPace(c, now.Saved, int(replicasOf(s))), "%s is promoted with %s, the user's is %s", s.Name, asJSON(c), asJSON(now.Saved))
	}
	if !now.rolls() {
		delete(r.whole, s.Name)
	} else if !then.rolls() {
		r.whole[s.Name] = r.available(s) >= int(replicasOf(s))
	}
	if now.phase() == "Promoted" && then.phase() != "Promoted" {
		r.completed++
	}
	if now.phase() == "RollingBack" && then.phase() != "RollingBack" {
		r.rolledBack++
	}
}

// canary checks a change of an added workload.
func (r *replay) canary(old, c *lws.LeaderWorkerSet, gone bool) {
	s := r.sets[c.Labels[stableLabel]]
	if s == nil {
		return // garbage collection after the user's workload
	}
	rec := recordOf(s)
	if !gone && old == nil {
		r.check(ruleIntent, rec.phase() == "Progressing", "%s appeared in phase %q", c.Name, rec.phase())
	}
	if !gone && (old == nil || replicasOf(old) != replicasOf(c)) {
		planned := plannedOf(c.Annotations[targetAnnotation], int(replicasOf(s)))
		if before, ok := r.before[s.Name]; ok {
			planned = max(planned, plannedOf(c.Annotations[targetAnnotation], before))
		}
		r.check(ruleCanarySize, int(replicasOf(c)) <= planned, "%s has %d groups, its target means %d", c.Name, replicasOf(c), planned)
	}
	if rec.rolls() && s.DeletionTimestamp == nil {
		r.check(ruleCanaryStays, !gone && c.DeletionTimestamp == nil, "%s goes in the promotion", c.Name)
		if old != nil {
			r.check(ruleCanaryStays, replicasOf(c) >= replicasOf(old), "%s shrinks in the promotion", c.Name)
		}
	}
	going := !gone && c.DeletionTimestamp != nil && old != nil && old.DeletionTimestamp == nil
	if going && s.DeletionTimestamp == nil {
		// The driver may have looked just before the template came back.
		replaced := rec.phase() == "Progressing" && (rec.Release.UpdateRevision != c.Labels["lockstep.dev/revision"] ||
			asJSON(s.Spec.LeaderWorkerTemplate) != r.released[s.Name] || r.template[s.Name] != r.released[s.Name])
		r.check(ruleIntent, rec.phase() == "Promoted" || rec.phase() == "RollingBack" || replaced,
			"%s goes in phase %q", c.Name, rec.phase())
	}
}

func (r *replay) stepPod(p *corev1.Pod, h happening) {
	old := r.pods[p.Name]
	if old != nil && !h.gone && old.ResourceVersion == p.ResourceVersion {
		return
	}
	if h.gone {
		delete(r.pods, p.Name)
	} else {
		r.pods[p.Name] = p
	}
	if old == nil || h.gone || (p.DeletionTimestamp == nil) != (old.DeletionTimestamp == nil) || podReady(p) != podReady(old) {
		r.lines = append(r.lines, fmt.Sprintf("%d pod %s gone=%t deleting=%t ready=%t revision=%s", h.version, p.Name, h.gone,
			p.DeletionTimestamp != nil, podReady(p), revisionOf(p)))
	}
	s := r.sets[p.Labels[lws.SetNameLabelKey]]
	if s == nil || s.Labels[roleLabel] != "" || s.DeletionTimestamp != nil {
		return
	}
	rec := recordOf(s)
	if rec.phase() != "Progressing" && rec.phase() != "RollingBack" {
		return
	}
	if old == nil && !h.gone {
		r.check(ruleStableKept, revisionOf(p) == rec.Release.StableRevision, "pod %s came at revision %s, stable is %s",
			p.Name, revisionOf(p), rec.Release.StableRevision)
	}
	// The workers of a group that a scale-down took go after their leader.
	leader := r.pods[s.Name+"-"+p.Labels[lws.GroupIndexLabelKey]]
	index, err := strconv.Atoi(p.Labels[lws.GroupIndexLabelKey])
	if err == nil && leader != nil && (leader == p || leader.DeletionTimestamp == nil) && index < int(replicasOf(s)) && !h.gone && old != nil && old.DeletionTimestamp == nil {
		r.check(ruleStableKept, p.DeletionTimestamp == nil, "pod %s goes in phase %s", p.Name, rec.phase())
	}
}

// standing checks what has to be so at every instant, whatever changed.
func (r *replay) standing(s *lws.LeaderWorkerSet) {
	var canaries []string
	for _, c := range r.sets {
		if c.Labels[stableLabel] == s.Name {
			canaries = append(canaries, c.Name)
		}
	}
	r.check(ruleOneCanary, len(canaries) <= 1, "%s has %v", s.Name, canaries)
	for _, name := range canaries {
		limit := max(int(replicasOf(s)), r.before[s.Name])
		r.check(ruleCanarySize, r.leaders(name) <= limit, "%s has %d groups, %s has %d", name, r.leaders(name), s.Name, limit)
	}
	rec := recordOf(s)
	if !rec.rolls() || s.DeletionTimestamp != nil {
		return
	}
	replicas := int(replicasOf(s))
	unavailable, surge := scaled(rec.Saved.MaxUnavailable, replicas, false), scaled(rec.Saved.MaxSurge, replicas, true)
	if unavailable == 0 && surge == 0 {
		unavailable = 1
	}
	if r.whole[s.Name] {
		own, added := r.available(s), 0
		for _, name := range canaries {
			added += r.available(r.sets[name])
		}
		r.check(ruleAvailable, own+added >= replicas-unavailable, "%s has %d groups available of %d and %d of its canary, maxUnavailable is %s",
			s.Name, own, replicas, added, rec.Saved.MaxUnavailable.String())
		if own < replicas-unavailable {
			r.dips++
		}
	}
	r.check(ruleSurge, r.leaders(s.Name) <= max(replicas, r.before[s.Name])+surge, "%s has %d groups of %d, maxSurge is %s",
		s.Name, r.leaders(s.Name), replicas, rec.Saved.MaxSurge.String())
}

// leaders counts the groups that exist and are not going.
func (r *replay) leaders(set string) int {
	n := 0
	for _, p := range r.pods {
		if p.Labels[lws.SetNameLabelKey] == set && p.Labels[lws.WorkerIndexLabelKey] == "0" && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// available counts the groups whose leader and workers are all ready at one revision, surge groups included.
func (r *replay) available(s *lws.LeaderWorkerSet) int {
	ready := map[string]map[string]int{} // by group, by revision
	for _, p := range r.pods {
		if p.Labels[lws.SetNameLabelKey] != s.Name || !podReady(p) {
			continue
		}
		group := p.Labels[lws.GroupIndexLabelKey]
		if ready[group] == nil {
			ready[group] = map[string]int{}
		}
		ready[group][revisionOf(p)]++
	}
	n := 0
	for _, byRevision := range ready {
		for _, pods := range byRevision {
			if pods == int(ptr.Deref(s.Spec.LeaderWorkerTemplate.Size, 1)) {
				n++
			}
		}
	}
	return n
}

// atUsersPace says whether LWS is set to roll every group by the user's settings; where both of them round to 0, which LWS
// refuses, one group may be unavailable.
func atUsersPace(c *lws.RollingUpdateConfiguration, saved lws.RollingUpdateConfiguration, replicas int) bool {
	if c == nil || ptr.Deref(c.Partition, 0) != 0 || c.MaxSurge != saved.MaxSurge {
		return false
	}
	nothing := scaled(saved.MaxUnavailable, replicas, false) == 0 && scaled(saved.MaxSurge, replicas, true) == 0
	return c.MaxUnavailable == saved.MaxUnavailable || (nothing && c.MaxUnavailable == intstr.FromInt32(1))
}

func recordOf(s *lws.LeaderWorkerSet) *record {
	if s == nil || s.Annotations[recordAnnotation] == "" {
		return nil
	}
	r := &record{}
	if err := json.Unmarshal([]byte(s.Annotations[recordAnnotation]), r); err != nil {
		return nil
	}
	return r
}

// plannedOf is the number of groups that a target annotation means: percentages round up.
func plannedOf(annotation string, replicas int) int {
	var target struct {
		Groups string `json:"groups"`
	}
	if annotation == "" || json.Unmarshal([]byte(annotation), &target) != nil {
		return 0
	}
	return min(scaled(intstr.Parse(target.Groups), replicas, true), replicas)
}

func scaled(v intstr.IntOrString, replicas int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(&v, replicas, up)
	if err != nil {
		return 0
	}
	return n
}
