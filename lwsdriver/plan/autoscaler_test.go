// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"

	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

func parseAutoscaler(l line) Autoscaler {
	kind, name, _ := strings.Cut(l.name, "/")
	return Autoscaler{
		Kind: kind, Name: name, Targets: !l.has("elsewhere") && !l.has("transferred"), Passed: l.has("transferred"), Scales: l.has("scales"), Held: l.has("held"),
		Lingers: l.attrs["lingers"], Unreadable: l.attrs["unreadable"],
	}
}

// scaler is the model of an autoscaler. Its policy is a word; "off" scales nothing.
type scaler struct {
	exists, elsewhere bool
	of                string // the workload that it scales, unless elsewhere
	policy, noted     string // noted: "" without a note
	userPolicy        string // the user's latest policy
	version           int
}

const off = "off"

// observeScaler is the observer.
func (c *cluster) observeScaler() []Autoscaler {
	s := c.scaler
	if !s.exists {
		return nil
	}
	r := c.record
	passed := !s.elsewhere && r != nil && r.Release != nil && r.Release.Successor != "" && s.of == r.Release.Successor
	return []Autoscaler{{
		Kind: "HorizontalPodAutoscaler", Name: "vllm", Targets: !s.elsewhere && s.of == c.stable.name, Passed: passed,
		Scales: s.policy != off, Held: s.noted != "",
	}}
}

// editAutoscaler edits the autoscaler, as users and tools do.
func (c *cluster) editAutoscaler() {
	s := &c.scaler
	how := rapid.SampledFrom([]string{"edit", "replace", "delete", "point elsewhere", "point back"}).Draw(c.t, "tune")
	c.note("user: %s the autoscaler", how)
	if !s.exists || s.elsewhere {
		s.of = c.serving() // a new one is created, or this one is pointed at the workload
	}
	switch how {
	case "edit":
		*s = scaler{exists: true, elsewhere: s.elsewhere, noted: s.noted, of: s.of}
	case "replace":
		*s = scaler{exists: true, elsewhere: s.elsewhere, of: s.of}
	case "delete":
		*s = scaler{of: s.of}
	case "point elsewhere", "point back":
		s.elsewhere = how == "point elsewhere"
	}
	if how == "edit" || how == "replace" {
		s.userPolicy = rapid.SampledFrom([]string{"max", "min"}).Draw(c.t, "policy")
		s.policy = s.userPolicy
	}
	c.created++
	s.version = c.created
}

// applyScaler is a write of the driver: made from an observation, and refused if the object has changed since.
func (c *cluster) applyScaler(a Action, versions map[string]int) bool {
	s := &c.scaler
	if !s.exists || versions["autoscaler"] != s.version {
		return false
	}
	switch a := a.(type) {
	case HoldAutoscaler:
		if s.policy != off {
			s.noted = s.policy
		}
		s.policy = off
	case ReleaseAutoscaler:
		if s.policy == off {
			s.policy = s.noted
		}
		if s.noted = ""; a.To != "" {
			s.of = a.To
		}
	}
	c.created++
	s.version = c.created
	return true
}

// checkScaler: nothing scales one of two sets by its load while requests are about to move.
func (c *cluster) checkScaler(o Observation, a Action) {
	t, isTraffic := a.(SetTraffic)
	_, isCanary := a.(CreateCanary)
	raises := isTraffic && t.Desired.Weight > c.traffic.weight
	if (raises || isCanary) && o.switches() && c.phase() != record.RollingBack && c.scaler.exists && !c.scaler.elsewhere && c.scaler.of == c.stable.name && c.scaler.policy != off {
		c.fail("%s, and the autoscaler scales", a)
	}
}

// checkScalerAtRest: it is held while a release needs that, and otherwise as its user configured it.
func (c *cluster) checkScalerAtRest(o Observation) {
	s := c.scaler
	switch {
	case !s.exists:
	case c.record != nil && c.next == nil && !s.elsewhere && s.of != c.stable.name:
		c.fail("the autoscaler is %+v, and %s serves", s, c.stable.name)
	case o.holdsAutoscalers() && !s.elsewhere:
		if o.release().Phase != record.RollingBack && s.policy != off {
			c.fail("the autoscaler scales in mid-release")
		}
	case s.policy != s.userPolicy || s.noted != "":
		c.fail("the autoscaler is %+v", s)
	}
}
