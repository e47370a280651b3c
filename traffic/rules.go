// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import "slices"

// The rules of a route are handled in two steps: strip gives the user's own rules back, whatever a release did to them,
// and render applies what is desired now. So every change starts from the user's rules, and there is drift if and only
// if render(strip(rules)) differs from rules.

// part is a rule without what this release did to it, and what that was.
type part struct {
	rule object
	// others: another release added the rule, which is left alone.
	others bool
	// share and mirror are the canary's, in percent. The mirror is still in the rule, so that it keeps its place.
	share, mirror int
}

// strip returns the user's rules, and those that other releases added.
func (b backend) strip(rules []object) []part {
	out := make([]part, 0, len(rules))
	for _, rule := range rules {
		switch {
		case b.added(rule):
			continue
		case added(rule):
			out = append(out, part{rule: rule, others: true})
			continue
		}
		rule = clone(rule)
		refs := list(rule, "backendRefs")
		p := part{rule: rule, share: b.share(refs), mirror: b.mirrored(rule)}
		setRefs(rule, b.merge(refs))
		out = append(out, p)
	}
	return out
}

// render returns the rules that share requests as desired.
func (b backend) render(parts []part, d Desired) ([]object, error) {
	return b.renderWithin(parts, d, func(part, string) Desired { return d })
}

// renderLess is render, but no rule gives more to the canary than it does, and no header route comes: what can be done
// whatever the state of the canary. have are the rules as they stand.
func (b backend) renderLess(parts []part, d Desired, have []object) ([]object, error) {
	names := map[string]bool{}
	for _, rule := range have {
		names[text(rule, "name", "")] = true
	}
	return b.renderWithin(parts, d, func(p part, prefix string) Desired {
		less := d
		less.Weight, less.Mirror = min(d.Weight, p.share), min(d.Mirror, p.mirror)
		less.HeaderRoutes = slices.DeleteFunc(slices.Clone(d.HeaderRoutes), func(h HeaderRoute) bool { return !names[prefix+h.Name] })
		return less
	})
}

func (b backend) renderWithin(parts []part, d Desired, limit func(p part, prefix string) Desired) ([]object, error) {
	out := make([]object, 0, len(parts)*(1+len(d.HeaderRoutes)))
	index := 0 // among the rules that no release added
	for _, p := range parts {
		if p.others {
			out = append(out, p.rule)
			continue
		}
		prefix := b.rulesFor(index)
		next, before, err := b.renderRule(p.rule, prefix, limit(p, prefix))
		if err != nil {
			return nil, err
		}
		out = append(insertSorted(out, before), next)
		index++
	}
	return out, nil
}

// renderRule returns a rule as desired and those that refine it, which belong before it.
func (b backend) renderRule(rule object, prefix string, d Desired) (next object, before []object, err error) {
	refs := list(rule, "backendRefs")
	plain := clone(rule)
	b.mirror(plain, nil, 0)
	if !b.serves(refs) {
		return plain, nil, nil
	}
	if before, err = b.headerRules(plain, prefix, d.HeaderRoutes); err != nil {
		return nil, nil, err
	}
	split, err := b.split(refs, d.Weight)
	if err != nil {
		return nil, nil, err
	}
	next = plain
	if d.Weight < 100 && d.Mirror > 0 {
		next = clone(rule)
		b.mirror(next, refs, d.Mirror)
	}
	setRefs(next, split)
	return next, before, nil
}

// insertSorted appends the rules that refine the next one to those that other releases have put there, by name: the
// releases agree about the order without knowing of each other.
func insertSorted(rules, more []object) []object {
	for _, rule := range more {
		at := len(rules)
		for at > 0 && added(rules[at-1]) && byName(rules[at-1], rule) > 0 {
			at--
		}
		rules = slices.Insert(rules, at, rule)
	}
	return rules
}

// setRefs leaves a rule without backendRefs (a redirect) as it is.
func setRefs(rule object, refs []object) {
	if len(refs) > 0 {
		rule["backendRefs"] = anys(refs)
	}
}
