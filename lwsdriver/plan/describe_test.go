// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// describe formats a decision for the scenario files.
func describe(o Observation, d Decision) string {
	var b strings.Builder
	fmt.Fprintf(&b, "action:  %s\n", describeAction(d.Action))
	fmt.Fprintf(&b, "state:   %s, %s\n", strings.TrimPrefix(d.State.String(), "STATE_"), d.Reason)
	fmt.Fprintf(&b, "message: %s\n", d.Message)
	s := d.Progress
	fmt.Fprintf(&b, "counts:  planned=%d desired=%d updated=%d updated-ready=%d stable-ready=%d total=%d threshold=%d weight=%d%%\n",
		s.Planned, s.Desired, s.Updated, s.UpdatedReady, s.StableReady, s.Total, s.Threshold, s.Weight)
	if !s.ProgressAt.IsZero() {
		fmt.Fprintf(&b, "progress: %s\n", o.Now.Sub(s.ProgressAt))
	}
	if o.MaxInFlight != nil {
		fmt.Fprintf(&b, "in flight: %d, starts %d, limit %d\n", d.InFlight, d.Starts, *o.MaxInFlight)
	}
	if d.Recheck != 0 {
		fmt.Fprintf(&b, "recheck: %s\n", d.Recheck)
	}
	return b.String()
}

func describeAction(a Action) string {
	switch a := a.(type) {
	case nil:
		return "none"
	case SetStable:
		if a.Why == whySaveWait {
			return a.String() + ": " + describeWaiting(a.Record.Release.Waiting)
		}
		text := fmt.Sprintf("%s\n         rolling %s\n         record %s", a, describeSet(a.Rolling), describeRecord(a.Record))
		if a.SaveTemplate {
			text += "\n         save the template"
		}
		if a.RestoreTemplate {
			text += "\n         restore the template"
		}
		if a.Replicas != nil {
			text += fmt.Sprintf("\n         %d groups", *a.Replicas)
		}
		return text
	case HandOver:
		return fmt.Sprintf("%s\n         record %s", a, describeRecord(a.Record))
	case CreateCanary:
		return fmt.Sprintf("%s, carrying %s, target %s", a, a.Revision, describeTarget(a.Target))
	case SaveRevision:
		e := a.Entry
		told := fmt.Sprintf("%s, seen %s ago, by %q of release %q by %q", a, noon.Sub(e.At), e.By, e.Release, e.Owner)
		if e.Outcome != "" {
			told += fmt.Sprintf(", %s %s ago", e.Outcome, noon.Sub(e.Ended))
		}
		return told
	case ScaleCanary:
		return fmt.Sprintf("%s, target %s", a, describeTarget(a.Target))
	default:
		return a.String()
	}
}

func describeWaiting(w record.Waiting) string {
	if w.For == "" {
		return "not any more"
	}
	return strings.TrimSpace(fmt.Sprintf("%s for %s %s", noon.Sub(w.Since), w.For, w.Overwritten))
}

func describeSet(r *rolling) string {
	if r == nil {
		return "unchanged"
	}
	return describeRolling(*r)
}

func describeRolling(r rolling) string {
	if record.SameRolling(r, record.Hold()) {
		return "hold"
	}
	return fmt.Sprintf("%d/%s/%s", ptr.Deref(r.Partition, 0), r.MaxUnavailable.String(), r.MaxSurge.String())
}

func describeRecord(r record.Record) string {
	s := fmt.Sprintf("saved=%s/%s", r.Saved.MaxUnavailable.String(), r.Saved.MaxSurge.String())
	if p := ptr.Deref(r.Saved.Partition, 0); p != 0 {
		s += fmt.Sprintf(" saved-partition=%d", p)
	}
	if r.Release != nil {
		s += fmt.Sprintf(" phase=%s stable=%s update=%s since=%s target=%s", r.Release.Phase, r.Release.StableRevision,
			r.Release.UpdateRevision, noon.Sub(r.Release.PhaseAt), describeTarget(r.Release.Target))
	}
	if r.Set != nil {
		s += " set=" + describeRolling(*r.Set)
	}
	if r.Release != nil && r.Release.Successor != "" {
		s += fmt.Sprintf(" successor=%s groups=%d", r.Release.Successor, r.Release.Groups)
	}
	if r.Workload != "" {
		s += " known-as=" + r.Workload
	}
	if r.Release != nil && r.Release.StableTemplate != nil {
		s += " template"
	}
	if r.Release != nil && r.Release.SplitEnded {
		s += " splitEnded"
	}
	return s
}

func describeTarget(t *record.Target) string {
	switch {
	case t == nil:
		return "none"
	case t.Batch == nil:
		return fmt.Sprintf("%s@%s", t.Groups, noon.Sub(t.At).Round(time.Millisecond))
	default:
		return fmt.Sprintf("%s#%d@%s", t.Groups, *t.Batch, noon.Sub(t.At).Round(time.Millisecond))
	}
}
