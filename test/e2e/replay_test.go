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
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The rules that are checked after every event.
const (
	// ruleOneCanary: a workload never has two canaries, not even while one is being deleted.
	ruleOneCanary rule = "never two canaries"
	// ruleCanarySize: the canary never has more groups than its target, nor than the workload.
	ruleCanarySize rule = "canary groups never above what is planned"
	// ruleStableUntouched: until the promotion no stable group changes its revision or is deleted.
	ruleStableUntouched rule = "stable groups are not touched before the promotion"
	// ruleAvailable: in the promotion available groups, the canary's included, never fall below replicas - maxUnavailable.
	// Those of the workload alone may, caused by LWS: it recreates a ready group when the garbage collector deletes a worker
	// of the group's predecessor, and by then it rolls the next group.
	ruleAvailable rule = "available groups never below replicas - maxUnavailable"
	// ruleSurge: in the promotion the workload never has more groups than replicas + maxSurge.
	ruleSurge rule = "stable groups never above replicas + maxSurge"
	// ruleCanaryStays: the canary's groups stay until the whole promotion is complete.
	ruleCanaryStays rule = "canary capacity stays until the promotion is complete"
	// ruleIntent: an intent is in the record before its first effect.
	ruleIntent rule = "intent is durable before its first effect"
	// ruleHold: the hold is removed only in a promotion, in its rollback, and in place for the groups of a batch. LWS then rolls
	// by the user's settings. Groups whose requests go to a complete second set may be replaced all at once.
	ruleHold rule = "the hold is removed only as far as requested, with the user's settings"
	// ruleBatch: in place no more groups leave the stable revision than the batch has, plus those of a later scale-up.
	ruleBatch rule = "groups replaced in place never above what is planned"
	// ruleDown: in place, and when groups are restarted, no more groups are down than maxUnavailable. Groups that have been
	// available at the target revision don't count: LWS may recreate them, see ruleAvailable.
	ruleDown rule = "groups taken down in place never above maxUnavailable"
	// ruleDouble: blue-green never has more than twice the groups of the workload, plus the user's maxSurge.
	ruleDouble rule = "blue-green groups never above twice the replicas"
	// ruleDelay: after a promotion the second set stays for the policy's scaleDownDelay.
	ruleDelay rule = "the second set stays for scaleDownDelay"
)

// record is the part of the record that the rules read.
type record struct {
	Saved   lws.RollingUpdateConfiguration `json:"saved"`
	Release *struct {
		ID             string    `json:"id"`
		StableRevision string    `json:"stableRevision"`
		UpdateRevision string    `json:"updateRevision"`
		Phase          string    `json:"phase"`
		PhaseAt        time.Time `json:"phaseAt"`
		Target         *target   `json:"target"`
		Policy         struct {
			Style     string          `json:"style"`
			Traffic   json.RawMessage `json:"traffic"`
			BlueGreen struct {
				ScaleDownDelay string `json:"scaleDownDelay"`
			} `json:"blueGreen"`
		} `json:"policy"`
	} `json:"release"`
}

type target struct {
	Groups string `json:"groups"`
}

// moves reports whether the phase replaces the workload's own groups.
func (r *record) moves() bool { return r.phase() == "Promoting" || r.phase() == "RollingBack" }

// rolls reports whether the hold is removed for all groups, so that LWS rolls the workload.
func (r *record) rolls(s *lws.LeaderWorkerSet) bool { return r.moves() && !isHeld(s) }

// isHeld reports whether the spec has the hold's partition.
func isHeld(s *lws.LeaderWorkerSet) bool {
	c := s.Spec.RolloutStrategy.RollingUpdateConfiguration
	return c != nil && ptr.Deref(c.Partition, 0) == holdPartition
}

func (r *record) style() string {
	if r == nil || r.Release == nil {
		return ""
	}
	return r.Release.Policy.Style
}

func (r *record) inPlace() bool { return r.style() == pb.Style_STYLE_PARTITION.String() }

func (r *record) blueGreen() bool { return r.style() == pb.Style_STYLE_BLUE_GREEN.String() }

func (r *record) phase() string {
	if r == nil || r.Release == nil {
		return ""
	}
	return r.Release.Phase
}

// replay is the state of the namespace after an event, with what the rules need of its history.
type replay struct {
	sets   map[string]*lws.LeaderWorkerSet
	pods   map[string]*corev1.Pod
	waived map[rule]bool
	// before has each stable workload's replicas before their last change: a driver that has not observed the change yet acts
	// on them.
	before map[string]int
	// whole has the workloads whose groups were all available when their promotion began.
	whole map[string]bool
	// released has each stable workload's template at the time when the record named its revision.
	released map[string]string
	// template has each stable workload's template before its last change.
	template map[string]string
	// own has the state of each stable workload's groups.
	own map[string]*ownGroups
	// ingresses and services route requests, and routed has each Service that got some after the last event.
	ingresses map[string]*networkingv1.Ingress
	services  map[string]*corev1.Service
	routed    map[string]side
	// roles has those of adopted DisaggregatedSets, by the set's name and theirs.
	roles map[string]*roleFloor

	violations []string
	lines      []string
	// violated is the number of lines at the first violation.
	violated int
}

func newReplay(waived map[rule]bool) *replay {
	return &replay{
		sets: map[string]*lws.LeaderWorkerSet{}, pods: map[string]*corev1.Pod{}, waived: waived,
		before: map[string]int{}, whole: map[string]bool{}, released: map[string]string{}, template: map[string]string{},
		own: map[string]*ownGroups{}, roles: map[string]*roleFloor{},
		ingresses: map[string]*networkingv1.Ingress{}, services: map[string]*corev1.Service{},
	}
}

// history returns what happened before and soon after the first violation.
func (r *replay) history() string {
	return strings.Join(r.lines[max(0, r.violated-130):min(r.violated+20, len(r.lines))], "\n")
}

func (r *replay) check(which rule, ok bool, format string, args ...any) {
	if ok || r.waived[which] {
		return
	}
	text := fmt.Sprintf(format, args...)
	if n := len(r.lines); n > 0 {
		text += "\n  after " + r.lines[n-1]
	}
	if len(r.violations) == 0 {
		r.violated = len(r.lines)
	}
	r.violations = append(r.violations, fmt.Sprintf("%s: %s", which, text))
}

// step applies one event and checks every rule.
func (r *replay) step(h clusterEvent) {
	environment := false
	switch object := h.object.(type) {
	case *lws.LeaderWorkerSet:
		r.stepSet(object, h)
	case *corev1.Pod:
		environment = r.byEnvironment(r.pods[object.Name], object, h.deleted)
		r.stepPod(object, h)
	case *networkingv1.Ingress:
		r.stepIngress(object, h)
	case *corev1.Service:
		r.stepService(object, h)
	case *disaggregated.DisaggregatedSet:
		r.stepRoleSet(object, h)
	}
	r.checkRoles()
	r.checkServed(environment)
	for _, s := range r.sets {
		if s.Labels[roleLabel] == "" {
			r.checkAlways(s)
		}
	}
}

func (r *replay) stepSet(s *lws.LeaderWorkerSet, h clusterEvent) {
	old := r.sets[s.Name]
	if old != nil && !h.deleted && old.ResourceVersion == s.ResourceVersion {
		return
	}
	if h.deleted {
		delete(r.sets, s.Name)
	} else {
		r.sets[s.Name] = s
	}
	r.lines = append(r.lines, fmt.Sprintf("%d set %s deleted=%t deleting=%t replicas=%d rolling=%s record=%s target=%s", h.version, s.Name, h.deleted,
		s.DeletionTimestamp != nil, replicasOf(s), asJSON(s.Spec.RolloutStrategy.RollingUpdateConfiguration),
		s.Annotations[recordAnnotation], s.Annotations[targetAnnotation]))
	if s.Labels[roleLabel] == "" {
		if !h.deleted {
			r.stableChanged(old, s)
		}
		return
	}
	r.canaryChanged(old, s, h.deleted)
}

// stableChanged checks a change of the user's workload.
func (r *replay) stableChanged(old, s *lws.LeaderWorkerSet) {
	if old != nil && replicasOf(old) != replicasOf(s) {
		before := int(replicasOf(old))
		for name, set := range r.sets { // the groups of more replicas may still be there
			if name == s.Name || set.Labels[stableLabel] == s.Name {
				before = max(before, min(r.before[s.Name], r.leaders(name)))
			}
		}
		r.before[s.Name] = before
		// A scale-down in mid-promotion removes available groups while LWS rolls others: LWS does not count them together.
		delete(r.whole, s.Name)
	}
	r.group(s.Name).update(old, s)
	r.template[s.Name] = asJSON(cmp.Or(old, s).Spec.LeaderWorkerTemplate)
	now, then := recordOf(s), recordOf(old)
	if now != nil && now.Release != nil && (then == nil || then.Release == nil || then.Release.UpdateRevision != now.Release.UpdateRevision) {
		r.released[s.Name] = asJSON(s.Spec.LeaderWorkerTemplate)
	}
	if now != nil {
		r.checkHold(old, s, now)
	}
	if !now.rolls(s) || now.inPlace() {
		delete(r.whole, s.Name)
	} else if old == nil || !then.rolls(old) {
		r.whole[s.Name] = r.available(s) >= int(replicasOf(s))
	}
	r.checkHandover(old, s, now, then)
}

// checkHandover checks that in a handover the workload's groups are on standby for the policy's scaleDownDelay, and are scaled
// down only while the second set is ready.
func (r *replay) checkHandover(old, s *lws.LeaderWorkerSet, now, then *record) {
	if now.phase() != "HandingOver" {
		return
	}
	if then.phase() != "HandingOver" {
		delay, err := time.ParseDuration(cmp.Or(now.Release.Policy.BlueGreen.ScaleDownDelay, "0s"))
		stood := then.phase() == "Standby" && now.Release.PhaseAt.Sub(then.Release.PhaseAt) >= delay
		r.check(ruleDelay, err == nil && (delay == 0 && then.phase() == "Promoting" || stood), "%s is handed over from phase %q", s.Name, then.phase())
	}
	if old == nil || replicasOf(s) >= replicasOf(old) {
		return
	}
	whole := false
	for _, c := range r.sets {
		whole = whole || c.Labels[stableLabel] == s.Name && r.available(c) >= int(replicasOf(old))
	}
	r.check(ruleAvailable, whole, "%s is scaled down, and its second set is not ready", s.Name)
}

// checkHold checks the workload's rolling update configuration against its release.
func (r *replay) checkHold(old, s *lws.LeaderWorkerSet, rec *record) {
	c, replicas, what := s.Spec.RolloutStrategy.RollingUpdateConfiguration, int(replicasOf(s)), ""
	ok := isHold(c)
	switch {
	case rec.phase() == "Promoting" && ok:
		what = "is promoting under the hold, without a second set to complete or traffic to move first"
		ok = rec.blueGreen() || rec.Release.Policy.Traffic != nil
	case rec.phase() == "RollingBack" && ok:
		// Groups are restarted, one after the other.
	case rec.moves():
		what = "rolls faster than the user's settings"
		unchanged := old != nil && asJSON(c) == asJSON(old.Spec.RolloutStrategy.RollingUpdateConfiguration)
		ok = atPace(c, rec, replicas) && ptr.Deref(c.Partition, 0) == 0 || r.skipsBrokenGroups(s, rec) ||
			// The driver may not have observed a scale-up yet, which the second set is to follow.
			rec.blueGreen() && allAtOnce(c) && (unchanged || r.drained(s, rec)) ||
			// The driver may not have observed yet that the broken groups are ready again.
			unchanged && recordOf(old).phase() == "RollingBack" ||
			// In place, the requests move before more groups than those of the batch are replaced.
			unchanged && rec.inPlace() && rec.Release.Policy.Traffic != nil
	case rec.inPlace() && rec.phase() == "Progressing" && !ok:
		what = "has a partition below that of its batch"
		// Only the driver changes the partition: a scale-up keeps it.
		ok = atPace(c, rec, replicas) && partitionOf(s) >= r.group(s.Name).floor ||
			old != nil && asJSON(c) == asJSON(old.Spec.RolloutStrategy.RollingUpdateConfiguration) && isPartitioned(recordOf(old))
	default:
		what = "is not held"
	}
	r.check(ruleHold, ok, "%s %s: %s in phase %q, the user's is %s", s.Name, what, asJSON(c), rec.phase(), asJSON(rec.Saved))
}

// canaryChanged checks a change of a workload that a release added.
func (r *replay) canaryChanged(old, c *lws.LeaderWorkerSet, deleted bool) {
	s := r.sets[c.Labels[stableLabel]]
	if s == nil {
		return // garbage collected with the user's workload
	}
	rec := recordOf(s)
	if !deleted && old == nil {
		r.check(ruleIntent, !rec.inPlace() && (rec.phase() == "Progressing" || rec.completes(s)), "%s was created in phase %q", c.Name, rec.phase())
	}
	if !deleted && (old == nil || replicasOf(old) != replicasOf(c)) {
		planned := plannedOf(c.Annotations[targetAnnotation], int(replicasOf(s)))
		if before, ok := r.before[s.Name]; ok {
			planned = max(planned, plannedOf(c.Annotations[targetAnnotation], before))
		}
		if rec.completes(s) {
			planned = max(int(replicasOf(s)), r.before[s.Name])
		}
		r.check(ruleCanarySize, int(replicasOf(c)) <= planned, "%s has %d groups, its target is %d", c.Name, replicasOf(c), planned)
	}
	ended := old != nil && old.DeletionTimestamp != nil // before the release started over
	if rec.rolls(s) && s.DeletionTimestamp == nil && !ended {
		r.check(ruleCanaryStays, !deleted && c.DeletionTimestamp == nil, "%s is deleted in the promotion", c.Name)
		if old != nil {
			r.check(ruleCanaryStays, replicasOf(c) >= replicasOf(old), "%s is scaled down in the promotion", c.Name)
		}
	}
	deleting := !deleted && c.DeletionTimestamp != nil && old != nil && old.DeletionTimestamp == nil
	if deleting && s.DeletionTimestamp == nil {
		// The driver may have observed another template just before it was reverted.
		replaced := (rec.phase() == "Progressing" || rec.completes(s)) && (rec.Release.UpdateRevision != c.Labels["lockstep.dev/revision"] ||
			asJSON(s.Spec.LeaderWorkerTemplate) != r.released[s.Name] || r.template[s.Name] != r.released[s.Name])
		r.check(ruleIntent, rec.phase() == "Promoted" || rec.phase() == "CleaningUp" || replaced,
			"%s is deleted in phase %q", c.Name, rec.phase())
		r.checkDelay(c, rec)
	}
}

// completes reports whether a promotion is still completing the second set.
func (r *record) completes(s *lws.LeaderWorkerSet) bool {
	return r.blueGreen() && r.phase() == "Promoting" && isHeld(s)
}

// checkDelay checks that a second set that is deleted after a promotion stayed for the policy's scaleDownDelay. Deletion
// timestamps are truncated to seconds.
func (r *replay) checkDelay(c *lws.LeaderWorkerSet, rec *record) {
	if rec.phase() != "Promoted" {
		return
	}
	delay, err := time.ParseDuration(cmp.Or(rec.Release.Policy.BlueGreen.ScaleDownDelay, "0s"))
	if err != nil || delay == 0 {
		return
	}
	stayed := c.DeletionTimestamp.Sub(rec.Release.PhaseAt)
	r.check(ruleDelay, stayed > delay-time.Second, "%s is deleted %s after the promotion, want %s", c.Name, stayed, delay)
}

// drained reports whether the workload's own groups get no requests: all go to a complete second set.
func (r *replay) drained(s *lws.LeaderWorkerSet, rec *record) bool {
	all := false
	for _, i := range r.ingresses {
		weight, canary := canaryWeight(i)
		if canary && weight < 100 {
			return false
		}
		all = all || canary
	}
	if rec.Release.Policy.Traffic == nil || !all {
		return false
	}
	for _, c := range r.sets {
		if c.Labels[stableLabel] == s.Name && r.available(c) >= int(replicasOf(s)) {
			return true
		}
	}
	return false
}

func (r *replay) stepPod(p *corev1.Pod, h clusterEvent) {
	old := r.pods[p.Name]
	if old != nil && !h.deleted && old.ResourceVersion == p.ResourceVersion {
		return
	}
	if h.deleted {
		delete(r.pods, p.Name)
	} else {
		r.pods[p.Name] = p
	}
	if old == nil || h.deleted || (p.DeletionTimestamp == nil) != (old.DeletionTimestamp == nil) || podReady(p) != podReady(old) {
		r.lines = append(r.lines, fmt.Sprintf("%d pod %s deleted=%t deleting=%t ready=%t revision=%s", h.version, p.Name, h.deleted,
			p.DeletionTimestamp != nil, podReady(p), revisionOf(p)))
	}
	s := r.sets[p.Labels[lws.SetNameLabelKey]]
	if s == nil || s.Labels[roleLabel] != "" || s.DeletionTimestamp != nil {
		return
	}
	own, rec := r.group(s.Name), recordOf(s)
	if rec == nil || rec.Release == nil || rec.rolls(s) && !rec.inPlace() {
		return
	}
	lowest := 1 << 30 // LWS may replace groups from this index on
	if rec.inPlace() {
		lowest = own.lowest
	}
	index, err := strconv.Atoi(p.Labels[lws.GroupIndexLabelKey])
	if err != nil || rec.phase() == "Promoted" || rec.phase() == "Nothing" {
		return
	}
	if own.rolled && !rec.inPlace() && (rec.phase() == "RollingBack" || rec.phase() == "CleaningUp") {
		own.noteRestart(p, rec)
		return // ruleDown counts them
	}
	if old == nil && !h.deleted && !rec.inPlace() && rec.phase() != "RollingBack" {
		r.check(ruleStableUntouched, revisionOf(p) == rec.Release.StableRevision, "pod %s was created at revision %s, stable is %s",
			p.Name, revisionOf(p), rec.Release.StableRevision)
	}
	// When a scale-down, a restart or the promotion deletes a group, its workers are deleted after the leader, which may have
	// been recreated by then, also at another revision.
	leader := r.pods[s.Name+"-"+p.Labels[lws.GroupIndexLabelKey]]
	stays := leader == p || leader != nil && leader.DeletionTimestamp == nil && revisionOf(leader) == revisionOf(p) && !own.restarted[index]
	if stays && index < min(int(replicasOf(s)), lowest) && !h.deleted && old != nil && old.DeletionTimestamp == nil &&
		(revisionOf(p) == rec.Release.StableRevision || !rec.inPlace() && rec.phase() != "RollingBack") {
		r.check(ruleStableUntouched, p.DeletionTimestamp == nil || own.restarted[index] || own.added[index], "pod %s is deleted in phase %s", p.Name, rec.phase())
	}
	if rec.inPlace() || rec.phase() == "RollingBack" {
		own.noteRestart(p, rec)
	}
}

// isPartitioned reports whether batches are released in place.
func isPartitioned(rec *record) bool { return rec.inPlace() && rec.phase() == "Progressing" }

// checkAlways checks the rules that hold after every event, whatever changed.
func (r *replay) checkAlways(s *lws.LeaderWorkerSet) {
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
	if s.DeletionTimestamp != nil {
		return
	}
	r.checkGroups(s, rec, canaries)
	if !rec.rolls(s) {
		return
	}
	replicas := int(replicasOf(s))
	unavailable, surge := scaled(rec.Saved.MaxUnavailable, replicas, false), scaled(rec.Saved.MaxSurge, replicas, true)
	if unavailable == 0 && surge == 0 {
		unavailable = 1
	}
	unavailable = max(unavailable, rec.rollbackUnavailable(s))
	if r.whole[s.Name] {
		own, added := r.available(s), 0
		for _, name := range canaries {
			added += r.available(r.sets[name])
		}
		r.check(ruleAvailable, own+added >= replicas-unavailable, "%s has %d groups available of %d and %d of its canary, maxUnavailable is %s",
			s.Name, own, replicas, added, rec.Saved.MaxUnavailable.String())
	}
	if rec.inPlace() {
		surge = 0
	}
	r.check(ruleSurge, r.leaders(s.Name) <= max(replicas, r.before[s.Name])+surge, "%s has %d groups of %d, maxSurge is %s",
		s.Name, r.leaders(s.Name), replicas, rec.Saved.MaxSurge.String())
}

// leaders counts the groups that exist and are not being deleted.
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
func (r *replay) available(s *lws.LeaderWorkerSet) int { return len(r.ready(s)) }

// atPace reports whether the configuration has the user's settings, in place without a surge. If both round to 0, which LWS
// refuses, one group may be unavailable.
func atPace(c *lws.RollingUpdateConfiguration, rec *record, replicas int) bool {
	saved := rec.Saved
	if rec.inPlace() {
		saved.MaxSurge = intstr.FromInt32(0)
	}
	if c == nil || c.MaxSurge != saved.MaxSurge {
		return false
	}
	nothing := scaled(saved.MaxUnavailable, replicas, false) == 0 && scaled(saved.MaxSurge, replicas, true) == 0
	return c.MaxUnavailable == saved.MaxUnavailable || (nothing && c.MaxUnavailable == intstr.FromInt32(1))
}

// skipsBrokenGroups reports whether the configuration lets LWS roll back past broken groups: the partition leaves it no more of the groups
// that serve off the stable revision than the user's maxUnavailable.
func (r *replay) skipsBrokenGroups(s *lws.LeaderWorkerSet, rec *record) bool {
	ready, serving, replicas := r.ready(s), 0, int(replicasOf(s))
	for index, revision := range ready {
		if index < replicas && index >= partitionOf(s) && revision != rec.Release.StableRevision {
			serving++
		}
	}
	c := *s.Spec.RolloutStrategy.RollingUpdateConfiguration
	c.MaxUnavailable = rec.Saved.MaxUnavailable
	return rec.phase() == "RollingBack" && len(ready) < replicas && serving <= max(scaled(rec.Saved.MaxUnavailable, replicas, false), 1) && atPace(&c, rec, replicas)
}

// rollbackUnavailable returns how many groups the configuration lets LWS take down in a rollback. ruleHold checks the
// configuration itself.
func (r *record) rollbackUnavailable(s *lws.LeaderWorkerSet) int {
	if r.phase() != "RollingBack" || isHeld(s) {
		return 0
	}
	return scaled(s.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxUnavailable, int(replicasOf(s)), false)
}

// allAtOnce reports whether the configuration lets LWS replace all groups at the same time.
func allAtOnce(c *lws.RollingUpdateConfiguration) bool {
	return c != nil && ptr.Deref(c.Partition, 0) == 0 && c.MaxUnavailable == intstr.FromString("100%") && c.MaxSurge == intstr.FromInt32(0)
}

func recordOf(s *lws.LeaderWorkerSet) *record {
	if s == nil {
		return nil
	}
	return recordIn(s.Annotations)
}

// recordIn returns the record of a workload with these annotations, nil if there is none.
func recordIn(annotations map[string]string) *record {
	r := &record{}
	if annotations[recordAnnotation] == "" || json.Unmarshal([]byte(annotations[recordAnnotation]), r) != nil {
		return nil
	}
	return r
}

// plannedOf returns planned for the value of a target annotation.
func plannedOf(annotation string, replicas int) int {
	var t target
	if annotation == "" || json.Unmarshal([]byte(annotation), &t) != nil {
		return 0
	}
	return t.planned(replicas)
}

// planned returns the number of groups of a target: percentages round up.
func (t *target) planned(replicas int) int {
	if t == nil {
		return 0
	}
	return min(scaled(intstr.Parse(t.Groups), replicas, true), replicas)
}

func scaled(v intstr.IntOrString, replicas int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(&v, replicas, up)
	if err != nil {
		return 0
	}
	return n
}
