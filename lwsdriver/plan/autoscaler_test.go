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
		Kind: kind, Name: name, Targets: !l.has("elsewhere") && !l.has("passed"), Passed: l.has("passed"), Scales: l.has("scales"), Held: l.has("held"),
		Lingers: l.attrs["lingers"], Unreadable: l.attrs["unreadable"],
	}
}

// scaler is the model of an autoscaler. Its policy is a word; "off" scales nothing.
type scaler struct {
	there, elsewhere bool
	of               string // the workload that it scales, unless elsewhere
	policy, noted    string // noted: "" without a note
	wish             string // the user's, as written last
	version          int
}

const off = "off"

// observeScaler is the observer's look.
func (c *cluster) observeScaler() []Autoscaler {
	s := c.scaler
	if !s.there {
		return nil
	}
	r := c.record
	passed := !s.elsewhere && r != nil && r.Release != nil && r.Release.Successor != "" && s.of == r.Release.Successor
	return []Autoscaler{{
		Kind: "HorizontalPodAutoscaler", Name: "vllm", Targets: !s.elsewhere && s.of == c.stable.name, Passed: passed,
		Scales: s.policy != off, Held: s.noted != "",
	}}
}

// tune is what people and other tools do to it.
func (c *cluster) tune() {
	s := &c.scaler
	how := rapid.SampledFrom([]string{"edit", "replace", "delete", "point elsewhere", "point back"}).Draw(c.t, "tune")
	c.note("user: %s the autoscaler", how)
	if !s.there || s.elsewhere {
		s.of = c.serving() // somebody makes a new one, or points this one at what there is
	}
	switch how {
	case "edit":
		*s = scaler{there: true, elsewhere: s.elsewhere, noted: s.noted, of: s.of}
	case "replace":
		*s = scaler{there: true, elsewhere: s.elsewhere, of: s.of}
	case "delete":
		*s = scaler{of: s.of}
	case "point elsewhere", "point back":
		s.elsewhere = how == "point elsewhere"
	}
	if how == "edit" || how == "replace" {
		s.wish = rapid.SampledFrom([]string{"max", "min"}).Draw(c.t, "policy")
		s.policy = s.wish
	}
	c.born++
	s.version = c.born
}

// applyScaler is a write of the driver: it is made from what the driver sees, and refused if that has changed.
func (c *cluster) applyScaler(a Action, versions map[string]int) bool {
	s := &c.scaler
	if !s.there || versions["autoscaler"] != s.version {
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
	c.born++
	s.version = c.born
	return true
}

// checkScaler: nothing scales one of two sets by its load when requests are about to move.
func (c *cluster) checkScaler(o Observation, a Action) {
	t, isTraffic := a.(SetTraffic)
	_, isCanary := a.(CreateCanary)
	raises := isTraffic && t.Desired.Weight > c.traffic.weight
	if (raises || isCanary) && o.switches() && c.phase() != record.RollingBack && c.scaler.there && !c.scaler.elsewhere && c.scaler.of == c.stable.name && c.scaler.policy != off {
		c.fail("%s, and the autoscaler scales", a)
	}
}

// checkScalerAtRest: it is held while a release needs that, and else as its user wants it.
func (c *cluster) checkScalerAtRest(o Observation) {
	s := c.scaler
	switch {
	case !s.there:
	case c.record != nil && c.next == nil && !s.elsewhere && s.of != c.stable.name:
		c.fail("the autoscaler is %+v, and %s serves", s, c.stable.name)
	case o.holdsAutoscalers() && !s.elsewhere:
		if o.release().Phase != record.RollingBack && s.policy != off {
			c.fail("the autoscaler scales in mid-release")
		}
	case s.policy != s.wish || s.noted != "":
		c.fail("the autoscaler is %+v", s)
	}
}
