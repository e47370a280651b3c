// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
)

// DefaultProgressDeadline allows for groups that load a large model: many would fail Deployment's 10 minutes.
const DefaultProgressDeadline = 30 * time.Minute

// DefaultMaxProgressDeadline is the longest deadline that a driver allows unless its operator sets another: no model loads for a day.
const DefaultMaxProgressDeadline = 24 * time.Hour

// Limits are what the operator of a driver allows policies.
type Limits struct {
	// Metadata are the prefixes of keys that canary_leader_metadata may have.
	Metadata []string
	// ProgressDeadline is the longest one, at least DefaultProgressDeadline. 0 means any.
	ProgressDeadline time.Duration
}

// Policy is a validated ReleasePolicy.
type Policy struct {
	Style            pb.Style
	Batches          []Quantity
	FailureThreshold Quantity
	ProgressDeadline time.Duration
	MinReady         time.Duration

	// ScaleDownDelay is how long groups without requests stay after a blue-green promotion.
	ScaleDownDelay time.Duration
	// Adopt makes a blue-green promotion hand the workload over to the second set and delete the user's own object.
	Adopt bool

	// Traffic names the objects that route requests. Nil means none.
	Traffic *traffic.Policy
	// WarmUp is what a canary leader must answer before it receives requests, Drain how it finishes them.
	WarmUp probe.WarmUp
	Drain  probe.Drain
	// WarmUpRoles and DrainRoles are roles of a DisaggregatedSet whose leaders are asked beside those of the entry role. RoleOrder are roles in
	// the order in which a promotion removes them, after all others.
	WarmUpRoles, DrainRoles, RoleOrder []string

	// RolloutID is the label of pods of updated groups. Empty means that they are not labelled.
	RolloutID string

	// LeaderLabels and LeaderAnnotations are added to the canary's leader pods.
	LeaderLabels, LeaderAnnotations map[string]string
}

// WarmsUp reports whether leaders must answer a request before they may get requests.
func (p Policy) WarmsUp() bool { return p.WarmUp != (probe.WarmUp{}) }

// Drains reports whether leaders finish their requests before they are removed.
func (p Policy) Drains() bool { return p.Drain != (probe.Drain{}) }

// policyField is the path of a policy in a request.
const policyField = "policy"

// Warnings warns of what a policy may not mean: numbers of groups that the workload does not have, as a percentage without its sign is,
// and a blue-green release that has no requests to switch.
func (p Policy) Warnings(replicas int) []*pb.Warning {
	warnings := p.batchWarnings(replicas)
	if p.Style == pb.Style_STYLE_BLUE_GREEN && p.Traffic == nil {
		warnings = append(warnings, &pb.Warning{
			Code: "RequestsNotSwitched",
			Message: "a blue-green release without traffic switches no requests: each group of the second set gets them as soon as it is ready, " +
				"if your Service selects it. To switch them at once, give traffic with the Service and a route (--service, --http-route)",
		})
	}
	return warnings
}

func (p Policy) batchWarnings(replicas int) []*pb.Warning {
	for i, q := range p.Batches {
		if q.percent || q.value <= replicas {
			continue
		}
		return []*pb.Warning{{
			Code: "BatchExceedsGroups",
			Message: fmt.Sprintf("batch %d is %d groups, and the workload has %d: it means all of them. For a percentage write %d%%",
				i+1, q.value, replicas, min(q.value, 100)), //nolint:mnd // percent
		}}
	}
	return nil
}

// ParsePolicy validates a policy. With any violation the Policy is unusable.
func ParsePolicy(p *pb.ReleasePolicy) (Policy, []drivererr.FieldViolation) {
	if p == nil {
		return Policy{}, []drivererr.FieldViolation{{Field: policyField, Description: "is required"}}
	}
	v := &violations{drivererr.Fields{Path: policyField}}
	policy := Policy{
		Style:             p.GetStyle(),
		Batches:           v.batches(p.GetBatches()),
		FailureThreshold:  v.threshold(p.GetFailureThreshold()),
		ProgressDeadline:  v.Duration("progress_deadline", p.GetProgressDeadline(), DefaultProgressDeadline, math.MaxInt64),
		MinReady:          v.Duration("min_ready", p.GetMinReady(), 0, math.MaxInt64),
		WarmUpRoles:       v.roles("traffic.warm_up.roles", p.GetTraffic().GetWarmUp().GetRoles()),
		DrainRoles:        v.roles("traffic.drain.roles", p.GetTraffic().GetDrain().GetRoles()),
		RoleOrder:         v.roles("role_order", p.GetRoleOrder()),
		RolloutID:         v.rolloutID(p.GetRolloutId()),
		LeaderLabels:      maps.Clone(p.GetCanaryLeaderMetadata().GetLabels()),
		LeaderAnnotations: maps.Clone(p.GetCanaryLeaderMetadata().GetAnnotations()),
	}
	v.style(p.GetStyle())
	v.metadata(policy)
	if p.GetBlueGreen() != nil && p.GetStyle() != pb.Style_STYLE_BLUE_GREEN {
		v.Add("blue_green", "is for style blue-green only: leave it out")
	}
	policy.ScaleDownDelay = v.Duration("blue_green.scale_down_delay", p.GetBlueGreen().GetScaleDownDelay(), 0, math.MaxInt64)
	v.promotion(&policy, p.GetBlueGreen().GetPromotion())
	v.traffic(&policy, p.GetTraffic())
	return policy, v.List
}

// Threshold returns how many of the planned groups may be unready while a batch counts as ready. At least one group has
// to be ready: otherwise the batch has shown nothing.
func (p Policy) Threshold(planned int) int {
	return min(p.FailureThreshold.Down(planned), max(planned-1, 0))
}

// violations collects those of a policy.
type violations struct{ drivererr.Fields }

func (v *violations) traffic(policy *Policy, p *pb.TrafficPolicy) {
	if p == nil {
		return
	}
	parsed, bad := traffic.ParsePolicy(p)
	warmUp, badWarmUp := probe.ParseWarmUp(p.GetWarmUp())
	drain, badDrain := probe.ParseDrain(p.GetDrain())
	v.List = slices.Concat(v.List, bad, badWarmUp, badDrain)
	policy.Traffic, policy.WarmUp, policy.Drain = &parsed, warmUp, drain
}

func (v *violations) promotion(policy *Policy, p pb.BluePromotion) {
	// proto3 enums are open, so a newer host may send any number.
	if _, known := pb.BluePromotion_name[int32(p)]; !known {
		v.Add("blue_green.promotion", "%d is none of BLUE_PROMOTION_IN_PLACE and BLUE_PROMOTION_ADOPT", p)
	}
	policy.Adopt = p == pb.BluePromotion_BLUE_PROMOTION_ADOPT
	if policy.Adopt && len(policy.LeaderLabels)+len(policy.LeaderAnnotations) > 0 {
		v.Add("canary_leader_metadata",
			"would stay on the leaders permanently, since a handover makes them the workload's own: leave it out")
	}
}

func (v *violations) style(s pb.Style) {
	if _, known := pb.Style_name[int32(s)]; !known || s == pb.Style_STYLE_UNSPECIFIED {
		v.Add("style", "is required: canary, blue-green or partition")
	}
}

func (v *violations) batches(raw []string) []Quantity {
	if len(raw) == 0 {
		v.Add("batches", "is required: at least one count of groups such as \"3\" or percentage such as \"25%%\"")
	}
	if len(raw) > MaxBatches {
		v.Add("batches", "%d batches are more than the %d that are possible: use fewer, larger ones", len(raw), MaxBatches)
		return nil
	}
	parsed := make([]Quantity, 0, len(raw))
	for i, s := range raw {
		field := fmt.Sprintf("batches[%d]", i)
		q, err := ParseQuantity(s)
		if err != nil {
			v.Add(field, "%v", err)
			return nil
		}
		// Whether 25% is less than 3 depends on replicas, which may change during the release.
		if i > 0 && q.percent != parsed[i-1].percent {
			v.Add(field, "%q mixes counts and percentages, which can't be compared: use one of them throughout", s)
			return nil
		}
		if i > 0 && q.value < parsed[i-1].value {
			v.Add(field, "%q is less than the batch before it (%q): batches never decrease", s, parsed[i-1])
		}
		parsed = append(parsed, q)
	}
	return parsed
}

// roles returns names of roles.
func (v *violations) roles(field string, names []string) []string {
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			v.Add(fmt.Sprintf("%s[%d]", field, i), "names role %q again: name each once", name)
		}
	}
	return slices.Clone(names)
}

func (v *violations) rolloutID(id string) string {
	for _, text := range validation.IsValidLabelValue(id) {
		v.Add("rollout_id", "%q is a label's value: %s", id, text)
	}
	return id
}

func (v *violations) threshold(raw string) Quantity {
	// The zero value tolerates no unready group.
	if raw == "" {
		return Quantity{}
	}
	q, err := ParseQuantity(raw)
	if err != nil {
		v.Add("failure_threshold", "%v", err)
	}
	return q
}

// Check returns what of a policy exceeds the limits.
func (l Limits) Check(p Policy) []drivererr.FieldViolation {
	bad := CheckMetadata(p, l.Metadata)
	if l.Apply(p).ProgressDeadline < p.ProgressDeadline {
		bad = append(bad, drivererr.FieldViolation{
			Field: policyField + ".progress_deadline",
			Description: fmt.Sprintf("is %s, and this driver allows at most %s: shorten it, or start the driver with a longer --max-progress-deadline",
				p.ProgressDeadline, l.ProgressDeadline),
		})
	}
	return bad
}

// Apply returns a recorded policy with the longest deadline that the limits allow. An older release has no exception: every editor of the
// workload can write the record, and its groups keep others waiting.
func (l Limits) Apply(p Policy) Policy {
	if l.ProgressDeadline > 0 {
		p.ProgressDeadline = min(p.ProgressDeadline, l.ProgressDeadline)
	}
	return p
}

// CheckMetadata returns what of the policy's canary_leader_metadata has none of the allowed prefixes. The driver creates pods, and
// other controllers act by their labels and annotations: with metadata of its choice, a release could have more effects than those
// of its workload.
func CheckMetadata(p Policy, prefixes []string) (bad []drivererr.FieldViolation) {
	for field, metadata := range map[string]map[string]string{"labels": p.LeaderLabels, "annotations": p.LeaderAnnotations} {
		for _, key := range slices.Sorted(maps.Keys(metadata)) {
			if !hasAnyPrefix(key, prefixes) {
				bad = append(bad, drivererr.FieldViolation{
					Field:       policyField + ".canary_leader_metadata." + field,
					Description: fmt.Sprintf("this driver does not allow %q: leave it out, or start the driver with --canary-metadata-prefix for it", key),
				})
			}
		}
	}
	// Maps have no order, and the same policy must have the same message.
	slices.SortStableFunc(bad, func(a, b drivererr.FieldViolation) int { return strings.Compare(a.Field, b.Field) })
	return bad
}

// reserved are the prefixes of labels that LWS and Lockstep select by.
var reserved = []string{"leaderworkerset.sigs.k8s.io/", "lockstep.dev/"}

func (v *violations) metadata(p Policy) {
	path := field.NewPath("canary_leader_metadata")
	size := 0
	for _, m := range []map[string]string{p.LeaderLabels, p.LeaderAnnotations} {
		for key, value := range m {
			size += len(key) + len(value)
		}
	}
	// The size comes first: the checks below cost by it.
	if size > MaxLeaderMetadata {
		v.Add(path.String(), "has %d bytes, more than the %d that are possible", size, MaxLeaderMetadata)
		return
	}
	errs := metavalidation.ValidateLabels(p.LeaderLabels, path.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(p.LeaderAnnotations, path.Child("annotations"))...)
	for _, err := range errs {
		v.Add(err.Field, "%s", err.ErrorBody())
	}
	keys := slices.Concat(slices.Collect(maps.Keys(p.LeaderLabels)), slices.Collect(maps.Keys(p.LeaderAnnotations)))
	slices.Sort(keys)
	for _, key := range keys {
		if hasAnyPrefix(key, reserved) {
			v.Add(path.String(), "%q belongs to LeaderWorkerSet or Lockstep itself: choose a key of your own", key)
		}
	}
}
