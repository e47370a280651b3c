// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"strings"

	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

func parseAutoscaler(l line) Autoscaler {
	kind, name, _ := strings.Cut(l.name, "/")
	scales, held := l.attrs["scales"], autoscaler.Hold(l.attrs["held"])
	if l.has("held") && held == "" {
		held = autoscaler.HoldAll
	}
	return Autoscaler{
		Kind: kind, Name: name, Targets: !l.has("elsewhere") && !l.has("transferred"), Passed: l.has("transferred"),
		Directions: autoscaler.Directions{Up: l.has("scales") && scales != "down", Down: l.has("scales") && scales != "up"}, ToZero: l.has("to-zero"), Held: held, Max: l.number("max", 0),
		Limited: l.has("limited"),
		Lingers: l.attrs["lingers"], Unreadable: l.attrs["unreadable"],
	}
}

// scaler is the model of an autoscaler. Its policy is a word.
type scaler struct {
	exists, elsewhere, toZero bool
	most                      int
	of                        string          // the workload that it scales, unless elsewhere
	policy                    string          // the user's latest policy
	hold                      autoscaler.Hold // in force
	noted                     autoscaler.Hold // by its note
	version                   int
}

// observeScaler is the observer.
func (c *cluster) observeScaler() []Autoscaler {
	s := c.scaler
	if !s.exists {
		return nil
	}
	r := c.record
	passed := !s.elsewhere && r != nil && r.Release != nil && r.Release.Successor != "" && s.of == r.Release.Successor
	return []Autoscaler{{
		Kind: "HorizontalPodAutoscaler", Name: "vllm", Targets: !s.elsewhere && s.of == c.stable.name, Passed: passed, ToZero: s.toZero,
		Directions: autoscaler.Directions{Up: s.hold != autoscaler.HoldAll, Down: s.hold == autoscaler.HoldNone}, Held: s.noted,
		Max: s.most,
	}}
}

// max is the most groups that the user of the autoscaler allows.
func (s scaler) max() int {
	if !s.exists || s.elsewhere {
		return math.MaxInt
	}
	return s.most
}

// allowed returns the most groups that the canary's target allows, as the user of the autoscaler bounds them.
func (c *cluster) allowed(s *set) int {
	most := c.scaler.max()
	if most == math.MaxInt {
		return most
	}
	planned, err := s.target.Planned(most)
	if err != nil {
		c.fail("%v", err)
	}
	return planned
}

// share is the percentage of requests that the canary receives.
func (c *cluster) share() int {
	if c.traffic == nil {
		return 100 // the requests follow the groups
	}
	return c.traffic.weight
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
		*s = scaler{exists: true, elsewhere: s.elsewhere, noted: s.noted, of: s.of, toZero: s.toZero, most: s.most}
	case "replace":
		*s = scaler{exists: true, elsewhere: s.elsewhere, of: s.of, toZero: s.toZero, most: s.most}
	case "delete":
		*s = scaler{of: s.of}
	case "point elsewhere", "point back":
		s.elsewhere = how == "point elsewhere"
	}
	if how == "edit" || how == "replace" {
		s.policy = rapid.SampledFrom([]string{"max", "min"}).Draw(c.t, "policy")
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
		s.hold, s.noted = a.Hold, a.Hold
	case ReleaseAutoscaler:
		if s.hold, s.noted = autoscaler.HoldNone, autoscaler.HoldNone; a.To != "" {
			s.of = a.To
		}
	}
	c.created++
	s.version = c.created
	return true
}

// acts reports whether the autoscaler acts against the hold that the release wants.
func (c *cluster) acts(o Observation) bool {
	s := c.scaler
	if !s.exists || s.elsewhere || s.of != c.stable.name {
		return false
	}
	return s.hold != autoscaler.HoldAll && o.switches() || s.hold == autoscaler.HoldNone
}

// checkScaler: no autoscaler removes groups while requests are about to move, and none scales one of two sets.
func (c *cluster) checkScaler(o Observation, a Action) {
	t, isTraffic := a.(SetTraffic)
	canary, isCanary := a.(CreateCanary)
	raises := isTraffic && t.Desired.Weight > c.traffic.weight
	if (raises || isCanary && (o.switches() || canary.Replicas > 0)) && c.phase() != record.RollingBack && c.acts(o) {
		c.fail("%s, and the autoscaler scales", a)
	}
}

// checkScalerAtRest: it is held while a release or a template that waits needs that, and otherwise as its user configured
// it.
func (c *cluster) checkScalerAtRest(o Observation) {
	s := c.scaler
	if !s.exists {
		return
	}
	want := o.wantedHold(o.Autoscalers[0])
	switch {
	case c.record != nil && c.next == nil && !s.elsewhere && s.of != c.stable.name:
		c.fail("the autoscaler is %+v, and %s serves", s, c.stable.name)
	case o.release() != nil && o.release().Phase == record.RollingBack:
	case s.hold != want || s.noted != want:
		c.fail("the autoscaler is %+v, want %q", s, want)
	}
}
