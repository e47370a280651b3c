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
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The rules that are checked at every instant.
const (
	// ruleOneCanary: a workload never has two canaries, not even while one is going.
	ruleOneCanary rule = "never two canaries"
	// ruleCanarySize: the canary never has more groups than the target means, nor than the workload has.
	ruleCanarySize rule = "canary groups never above what is planned"
	// ruleStableKept: until the promotion no stable group changes its revision or goes.
	ruleStableUntouched rule = "stable groups are not touched before the promotion"
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
	// ruleHold: the hold is off in a promotion, on the way back from one, and in place for the groups of a batch; LWS then
	// rolls by the user's own settings. Groups that have lost their requests to a complete second set may go all at once.
	ruleHold rule = "the hold is off as far as asked for only, for the user's own settings"
	// ruleBatch: in place no more groups leave the stable revision than the batch means, and a scale-up since then added.
	ruleBatch rule = "groups replaced in place never above what is planned"
	// ruleDown: in place, and where groups are restarted, no more of them are down than the user lets be unavailable. A group
	// that has arrived counts no more: LWS may recreate it once again, as ruleAvailable has it. Those instants are dips.
	ruleDown rule = "groups taken down in place never above maxUnavailable"
	// ruleDouble: blue-green never has more groups than twice those of the workload, and the user's own surge.
	ruleDouble rule = "blue-green groups never above twice the replicas"
	// ruleDelay: after a promotion the second set stays for as long as the policy says.
	ruleDelay rule = "the second set stays for scaleDownDelay"
)

// record is what is read of the annotation.
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

// moves reports whether the intent is one for which the user's own groups are replaced.
func (r *record) moves() bool { return r.phase() == "Promoting" || r.phase() == "RollingBack" }

// rolls reports whether the hold is off for all groups, so that LWS rolls the user's workload.
func (r *record) rolls(s *lws.LeaderWorkerSet) bool { return r.moves() && !isHeld(s) }

// isHeld reports whether the hold's partition is in force.
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
	// own is what is known of each stable workload's groups.
	own map[string]*ownGroups
	// requests is where each canary Ingress sends them, by name.
	requests map[string]string

	checks, dips          int
	completed, rolledBack int
	violations            []string
	lines                 []string
}

func newReplay(waived map[rule]bool) *replay {
	return &replay{
		sets: map[string]*lws.LeaderWorkerSet{}, pods: map[string]*corev1.Pod{}, waived: waived,
		before: map[string]int{}, whole: map[string]bool{}, released: map[string]string{}, template: map[string]string{},
		own: map[string]*ownGroups{}, requests: map[string]string{},
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
func (r *replay) step(h clusterEvent) {
	switch object := h.object.(type) {
	case *lws.LeaderWorkerSet:
		r.stepSet(object, h)
	case *corev1.Pod:
		r.stepPod(object, h)
	case *networkingv1.Ingress:
		r.stepIngress(object, h)
	}
	for _, s := range r.sets {
		if s.Labels[roleLabel] == "" {
			r.checkAlways(s)
		}
	}
}

func (r *replay) stepSet(s *lws.LeaderWorkerSet, h clusterEvent) {
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
			r.stableChanged(old, s)
		}
		return
	}
	r.canaryChanged(old, s, h.gone)
}

// stable checks a change of the user's workload.
func (r *replay) stableChanged(old, s *lws.LeaderWorkerSet) {
	if old != nil && replicasOf(old) != replicasOf(s) {
		r.before[s.Name] = int(replicasOf(old))
		// A scale-down in mid-promotion takes groups that are available while LWS rolls others: it does not count them together.
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
	if now.phase() == "Promoted" && then.phase() != "Promoted" {
		r.completed++
	}
	r.checkHandover(old, s, now, then)
	if now.phase() == "CleaningUp" && then.phase() != "CleaningUp" {
		r.rolledBack++
	}
}

// adopting checks that the groups of a workload whose second set is adopted stand by for as long as the policy says, and go
// only while that set is whole.
func (r *replay) checkHandover(old, s *lws.LeaderWorkerSet, now, then *record) {
	if now.phase() != "HandingOver" {
		return
	}
	if then.phase() != "HandingOver" {
		delay, err := time.ParseDuration(cmp.Or(now.Release.Policy.BlueGreen.ScaleDownDelay, "0s"))
		stood := then.phase() == "Standby" && now.Release.PhaseAt.Sub(then.Release.PhaseAt) >= delay
		r.check(ruleDelay, err == nil && (delay == 0 && then.phase() == "Promoting" || stood), "%s is adopted away from phase %q", s.Name, then.phase())
	}
	if old == nil || replicasOf(s) >= replicasOf(old) {
		return
	}
	whole := false
	for _, c := range r.sets {
		whole = whole || c.Labels[stableLabel] == s.Name && r.available(c) >= int(replicasOf(old))
	}
	r.check(ruleAvailable, whole, "the groups of %s go, and its second set is not whole", s.Name)
}

// hold checks the configuration of the user's workload against what the release is about.
func (r *replay) checkHold(old, s *lws.LeaderWorkerSet, rec *record) {
	c, replicas, what := s.Spec.RolloutStrategy.RollingUpdateConfiguration, int(replicasOf(s)), ""
	ok := isHold(c)
	switch {
	case rec.phase() == "Promoting" && ok:
		what = "is promoted without a second set to complete first"
		ok = rec.blueGreen() || rec.Release.Policy.Traffic != nil
	case rec.phase() == "RollingBack" && ok:
		// Groups are restarted, one after the other.
	case rec.moves():
		what = "rolls faster than its user lets it"
		ok = atPace(c, rec, replicas) && ptr.Deref(c.Partition, 0) == 0 || rec.blueGreen() && allAtOnce(c) && r.drained(s, rec) ||
			r.skipsBrokenGroups(s, rec) ||
			// When the broken groups are ready again, the driver needs a moment to follow.
			old != nil && asJSON(c) == asJSON(old.Spec.RolloutStrategy.RollingUpdateConfiguration) && recordOf(old).phase() == "RollingBack"
	case rec.inPlace() && rec.phase() == "Progressing" && !ok:
		what = "has a partition that its batch does not mean"
		// It is the driver's if it changed: a scale-up leaves it as it was.
		ok = atPace(c, rec, replicas) && partitionOf(s) >= r.group(s.Name).floor ||
			old != nil && asJSON(c) == asJSON(old.Spec.RolloutStrategy.RollingUpdateConfiguration) && isPartitioned(recordOf(old))
	default:
		what = "is not held"
	}
	r.check(ruleHold, ok, "%s %s: %s in phase %q, the user's is %s", s.Name, what, asJSON(c), rec.phase(), asJSON(rec.Saved))
}

// canary checks a change of an added workload.
func (r *replay) canaryChanged(old, c *lws.LeaderWorkerSet, gone bool) {
	s := r.sets[c.Labels[stableLabel]]
	if s == nil {
		return // garbage collection after the user's workload
	}
	rec := recordOf(s)
	if !gone && old == nil {
		r.check(ruleIntent, !rec.inPlace() && (rec.phase() == "Progressing" || rec.completes(s)), "%s appeared in phase %q", c.Name, rec.phase())
	}
	if !gone && (old == nil || replicasOf(old) != replicasOf(c)) {
		planned := plannedOf(c.Annotations[targetAnnotation], int(replicasOf(s)))
		if before, ok := r.before[s.Name]; ok {
			planned = max(planned, plannedOf(c.Annotations[targetAnnotation], before))
		}
		if rec.completes(s) {
			planned = max(int(replicasOf(s)), r.before[s.Name])
		}
		r.check(ruleCanarySize, int(replicasOf(c)) <= planned, "%s has %d groups, its target means %d", c.Name, replicasOf(c), planned)
	}
	if rec.rolls(s) && s.DeletionTimestamp == nil {
		r.check(ruleCanaryStays, !gone && c.DeletionTimestamp == nil, "%s goes in the promotion", c.Name)
		if old != nil {
			r.check(ruleCanaryStays, replicasOf(c) >= replicasOf(old), "%s shrinks in the promotion", c.Name)
		}
	}
	going := !gone && c.DeletionTimestamp != nil && old != nil && old.DeletionTimestamp == nil
	if going && s.DeletionTimestamp == nil {
		// The driver may have looked just before the template came back.
		replaced := (rec.phase() == "Progressing" || rec.completes(s)) && (rec.Release.UpdateRevision != c.Labels["lockstep.dev/revision"] ||
			asJSON(s.Spec.LeaderWorkerTemplate) != r.released[s.Name] || r.template[s.Name] != r.released[s.Name])
		r.check(ruleIntent, rec.phase() == "Promoted" || rec.phase() == "CleaningUp" || replaced,
			"%s goes in phase %q", c.Name, rec.phase())
		r.checkDelay(c, rec)
	}
}

// completes reports whether a promotion is about the second set still.
func (r *record) completes(s *lws.LeaderWorkerSet) bool {
	return r.blueGreen() && r.phase() == "Promoting" && isHeld(s)
}

// delayed checks that a second set that goes after a promotion had stayed for as long as the policy says. Deletions are
// stamped in whole seconds, cut.
func (r *replay) checkDelay(c *lws.LeaderWorkerSet, rec *record) {
	if rec.phase() != "Promoted" {
		return
	}
	delay, err := time.ParseDuration(cmp.Or(rec.Release.Policy.BlueGreen.ScaleDownDelay, "0s"))
	if err != nil || delay == 0 {
		return
	}
	stayed := c.DeletionTimestamp.Sub(rec.Release.PhaseAt)
	r.check(ruleDelay, stayed > delay-time.Second, "%s goes %s after the promotion, not %s", c.Name, stayed, delay)
}

// stepIngress notes the share that the annotations of a canary Ingress give.
func (r *replay) stepIngress(i *networkingv1.Ingress, h clusterEvent) {
	share, ok := i.Annotations["nginx.ingress.kubernetes.io/canary-weight"]
	if h.gone || !ok {
		delete(r.requests, i.Name)
		share = "none"
	} else {
		r.requests[i.Name] = share
	}
	r.lines = append(r.lines, fmt.Sprintf("%d ingress %s gone=%t share=%s", h.version, i.Name, h.gone, share))
}

// idle reports whether the workload's own groups have no requests: all of those go to a second set that is complete.
func (r *replay) drained(s *lws.LeaderWorkerSet, rec *record) bool {
	if rec.Release.Policy.Traffic == nil || len(r.requests) == 0 {
		return false
	}
	for _, share := range r.requests {
		if share != "100" {
			return false
		}
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
	own, rec := r.group(s.Name), recordOf(s)
	if rec == nil || rec.Release == nil || rec.rolls(s) && !rec.inPlace() {
		return
	}
	lowest := 1 << 30 // the groups that LWS may replace begin here
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
	if old == nil && !h.gone && !rec.inPlace() && rec.phase() != "RollingBack" {
		r.check(ruleStableUntouched, revisionOf(p) == rec.Release.StableRevision, "pod %s came at revision %s, stable is %s",
			p.Name, revisionOf(p), rec.Release.StableRevision)
	}
	// The workers of a group that a scale-down, a restart or the promotion took go after their leader, which may be there
	// again by then, also at another revision.
	leader := r.pods[s.Name+"-"+p.Labels[lws.GroupIndexLabelKey]]
	stays := leader == p || leader != nil && leader.DeletionTimestamp == nil && revisionOf(leader) == revisionOf(p) && !own.restarted[index]
	if stays && index < min(int(replicasOf(s)), lowest) && !h.gone && old != nil && old.DeletionTimestamp == nil &&
		(revisionOf(p) == rec.Release.StableRevision || !rec.inPlace() && rec.phase() != "RollingBack") {
		r.check(ruleStableUntouched, p.DeletionTimestamp == nil || own.restarted[index] || own.added[index], "pod %s goes in phase %s", p.Name, rec.phase())
	}
	if rec.inPlace() || rec.phase() == "RollingBack" {
		own.noteRestart(p, rec)
	}
}

// isPartitioned reports whether batches in place were running.
func isPartitioned(rec *record) bool { return rec.inPlace() && rec.phase() == "Progressing" }

// standing checks what has to be so at every instant, whatever changed.
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
		if own < replicas-unavailable {
			r.dips++
		}
	}
	if rec.inPlace() {
		surge = 0
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
func (r *replay) available(s *lws.LeaderWorkerSet) int { return len(r.ready(s)) }

// atPace reports whether LWS is set to roll by the user's settings, in place without a surge; where both of them round to 0,
// which LWS refuses, one group may be unavailable.
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

// around reports whether LWS is led around groups that are broken at the revision that a rollback leaves: by the user's settings,
// but for as many groups more as those are.
func (r *replay) skipsBrokenGroups(s *lws.LeaderWorkerSet, rec *record) bool {
	broken, ready, replicas := r.offStable(s, rec), r.ready(s), int(replicasOf(s))
	for index, revision := range ready {
		if index < replicas && revision != rec.Release.StableRevision {
			broken--
		}
	}
	c := *s.Spec.RolloutStrategy.RollingUpdateConfiguration
	allowed := max(scaled(rec.Saved.MaxUnavailable, replicas, false), 1) + broken
	fast := scaled(c.MaxUnavailable, replicas, false) > allowed
	c.MaxUnavailable = rec.Saved.MaxUnavailable
	return rec.phase() == "RollingBack" && broken > 0 && !fast && atPace(&c, rec, replicas)
}

// back is how many groups may be down on a rollback, as far as the configuration tells; ruleHold reports whether it may.
func (r *record) rollbackUnavailable(s *lws.LeaderWorkerSet) int {
	if r.phase() != "RollingBack" || isHeld(s) {
		return 0
	}
	return scaled(s.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxUnavailable, int(replicasOf(s)), false)
}

// allAtOnce reports whether LWS is set to replace all groups at the same time.
func allAtOnce(c *lws.RollingUpdateConfiguration) bool {
	return c != nil && ptr.Deref(c.Partition, 0) == 0 && c.MaxUnavailable == intstr.FromString("100%") && c.MaxSurge == intstr.FromInt32(0)
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

// plannedOf is planned for a target annotation.
func plannedOf(annotation string, replicas int) int {
	var t target
	if annotation == "" || json.Unmarshal([]byte(annotation), &t) != nil {
		return 0
	}
	return t.planned(replicas)
}

// planned is the number of groups that a target means: percentages round up.
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
