// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// NewerSchema reports whether a newer driver wrote the record in a schema that this driver does not know.
func (r *Record) NewerSchema() bool { return r != nil && r.Version > recordVersion }

// Newer returns what this driver does not know of the record, so that it must not carry the release on: it would do half
// of what was requested. Going back needs less. Empty: it knows all that matters.
//
// Fields that are unknown as a whole are optional: they don't count.
func (r *Record) Newer() string {
	if r == nil {
		return ""
	}
	var parts []string
	if r.NewerSchema() {
		parts = append(parts, fmt.Sprintf("schema version %d (this driver knows %d)", r.Version, recordVersion))
	}
	half := r.Unknown.HalfRead(*r)
	if n := r.Release; n != nil {
		half = append(half, prefixed("release.", n.Unknown.HalfRead(*n))...)
		if n.Traffic != nil {
			half = append(half, prefixed("release.traffic.", n.Traffic.Unknown.HalfRead(*n.Traffic))...)
		}
		if n.newerPolicy() {
			half = append(half, "release.policy")
		}
	}
	if len(half) > 0 {
		parts = append(parts, "unknown values in "+strings.Join(half, ", "))
	}
	return strings.Join(parts, ", ")
}

func prefixed(prefix string, names []string) []string {
	for i := range names {
		names[i] = prefix + names[i]
	}
	return names
}

// newerPolicy reports whether the policy is valid JSON of a policy, but has a field or value that this driver does not
// know.
func (r *Release) newerPolicy() bool {
	if _, err := r.PolicyMessage(); err == nil {
		return false
	}
	_, err := r.KnownPolicy()
	return err == nil
}

// check refuses a record that no driver writes.
func (r *Record) check() error {
	if r.NewerSchema() {
		return r.checkNewer()
	}
	if err := r.Unknown.check(*r); err != nil {
		return err
	}
	if err := r.checkSettings(); err != nil {
		return err
	}
	if r.Release == nil {
		return nil
	}
	if err := r.Release.validate(); err != nil {
		return err
	}
	return r.checkRollBack()
}

func (r *Record) checkSettings() error {
	if err := checkRolling(r.Saved); err != nil {
		return fmt.Errorf("saved: %w", err)
	}
	if err := checkRolling(r.LastSet()); err != nil {
		return fmt.Errorf("set: %w", err)
	}
	return nil
}

// checkNewer checks a record of a newer schema. Optional parts that are not as this driver knows them become unknown.
func (r *Record) checkNewer() error {
	if err := r.checkSettings(); err != nil {
		return err
	}
	if r.Release == nil {
		return r.checkRollBack()
	}
	n := r.Release
	if err := n.Target.check(); err != nil {
		n.Unknown, n.Target = n.Unknown.with("target", raw(n.Target)), nil
	}
	if err := n.Traffic.validate(); err != nil {
		n.Unknown, n.Traffic = n.Unknown.with("traffic", raw(n.Traffic)), nil
	}
	return r.checkRollBack()
}

// checkRollBack refuses a record of a newer driver that lacks what a rollback needs.
func (r *Record) checkRollBack() error {
	newer := r.Newer()
	if newer == "" {
		return nil
	}
	var lacks []string
	for _, name := range []string{"saved", "set", "release"} {
		if slices.Contains(r.Unknown.HalfRead(*r), name) {
			lacks = append(lacks, name)
		}
	}
	if SameRolling(r.Saved, lws.RollingUpdateConfiguration{}) {
		lacks = append(lacks, "saved")
	}
	if r.Release != nil {
		lacks = append(lacks, r.Release.lacks()...)
	}
	if lacks = slices.Compact(lacks); len(lacks) > 0 {
		return fmt.Errorf("a newer driver wrote it (%s), and what a rollback needs of it is missing or unknown: %s; run that driver",
			newer, strings.Join(lacks, ", "))
	}
	return nil
}

// lacks returns what a rollback needs and the release does not have.
func (r *Release) lacks() []string {
	var out []string
	if err := r.validatePhase(); err != nil {
		out = append(out, err.Error())
	}
	if r.StableRevision == "" && r.Phase != Nothing {
		out = append(out, "release.stableRevision")
	}
	p, err := r.KnownPolicy()
	if err != nil {
		return append(out, "release.policy")
	}
	if r.newerTraffic() {
		out = append(out, "release.policy.traffic")
	}
	_, bad := ParsePolicy(p)
	for _, v := range bad {
		if hasAnyPrefix(v.Field, []string{"policy.style", "policy.traffic", "policy.blue_green.promotion"}) {
			out = append(out, "release."+v.Field)
		}
	}
	return out
}

// newerTraffic reports whether the policy says how requests are routed in a way that this driver does not know, so that it
// can't return them all. How they are drained does not matter for that.
func (r *Release) newerTraffic() bool {
	var p struct {
		Traffic map[string]json.RawMessage `json:"traffic"`
	}
	if json.Unmarshal(r.Policy, &p) != nil || p.Traffic == nil {
		return false // an unknown form of it is no TrafficPolicy, and KnownPolicy has refused it
	}
	delete(p.Traffic, "warmUp")
	delete(p.Traffic, "drain")
	routes, err := json.Marshal(p.Traffic)
	return err != nil || protojson.Unmarshal(routes, &pb.TrafficPolicy{}) != nil
}

// check is validate for a target that may be nil.
func (t *Target) check() error {
	if t == nil {
		return nil
	}
	return t.validate()
}

// raw encodes what was read.
func raw(v json.Marshaler) json.RawMessage {
	out, err := v.MarshalJSON()
	if err != nil {
		return json.RawMessage("null")
	}
	return out
}
