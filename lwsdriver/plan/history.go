// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Entry is one template that the workload has had, in the driver's own history: LWS forgets a template as soon as no
// group runs it.
type Entry struct {
	// Revision is the template revision hash. There is one entry for each.
	Revision string
	// Number rises with each release. A revision that returns gets a new one.
	Number int64
	// At is when its release began, or when it was seen first.
	At time.Time
	// By is the field manager that wrote it into the spec. Empty: not known.
	By string
	// Release and Owner are the release that brought it. Empty: it was there before the first one.
	Release, Owner string
	// Outcome is how that release ended, and Ended when. Empty: it has not, or nobody saw it.
	Outcome Outcome
	Ended   time.Time
	// Template is the digest of the template that is kept.
	Template string
	// Problem is why nothing of this can be trusted: somebody edited it. Empty: it can.
	Problem string
}

// Outcome is how a release ended.
type Outcome string

// The ends of a release.
const (
	Promoted   Outcome = "Promoted"
	RolledBack Outcome = "RolledBack"
)

// SaveRevision writes an entry of the history: a new one with the template, or what is known of one that is there.
type SaveRevision struct{ Entry Entry }

// DeleteRevision removes an entry.
type DeleteRevision struct{ Revision string }

// RestoreTemplate puts an older template back into the spec. The workload is held from the same request on.
type RestoreTemplate struct {
	Revision string
	// Record is written in the same request, with the hold. Nil: it is there already.
	Record *record.Record
}

func (SaveRevision) action()    {}
func (DeleteRevision) action()  {}
func (RestoreTemplate) action() {}

func (a SaveRevision) String() string {
	e := a.Entry
	switch {
	case e.Outcome != "":
		return fmt.Sprintf("note in the history that revision %s, number %d, was %s", e.Revision, e.Number, e.Outcome.words())
	case e.Release == "":
		return fmt.Sprintf("keep the template of revision %s in the history, as number %d", e.Revision, e.Number)
	}
	return fmt.Sprintf("keep the template of revision %s in the history, as number %d, of release %s", e.Revision, e.Number, e.Release)
}
func (a DeleteRevision) String() string  { return "drop revision " + a.Revision + " from the history" }
func (a RestoreTemplate) String() string { return "bring back the template of revision " + a.Revision }

func (o Outcome) words() string {
	if o == RolledBack {
		return "rolled back"
	}
	return "promoted"
}

// ReasonRecording is said of a release that is over but for a line in the history.
const ReasonRecording = "RecordingOutcome"

// keepHistory keeps the history up. It comes after everything else: no group waits for it. But a release is over only once
// the history says how it ended, since the next one takes its place in the record.
func keepHistory(o Observation, d Decision) Decision {
	if d.Action != nil || o.HistoryUnread || o.Record == nil || o.Stable.Deleting || d.Reason == ReasonStyleNotSupported || o.handingOver() {
		return d // in an adoption the history is passed on
	}
	if e := nextOutcome(o, d.State); e != nil {
		d.Action = SaveRevision{*e}
		if busy := cleanUpState(d.State); busy != d.State {
			d.State, d.Reason = busy, ReasonRecording
		}
		return d
	}
	if e := nextEntry(o); e != nil {
		d.Action = SaveRevision{*e}
	} else if revision := nextForgotten(o); revision != "" {
		d.Action = DeleteRevision{revision}
	}
	return d
}

// nextOutcome is the first entry whose release has ended otherwise than it says.
func nextOutcome(o Observation, state pb.State) *Entry {
	for _, e := range o.History {
		if e.Problem != "" || e.Release == "" || o.HistoryLimit == 0 {
			continue
		}
		if now := o.outcome(e, state); now != e.Outcome {
			e.Outcome, e.Ended = now, o.Now
			return &e
		}
	}
	return nil
}

// outcome is how the release of an entry ended, as far as it can be told now.
func (o Observation) outcome(e Entry, state pb.State) Outcome {
	r := o.Record.Release
	switch {
	case r == nil || r.ID != e.Release:
		return e.Outcome
	case r.UpdateRevision != e.Revision:
		if e.Outcome == "" {
			return RolledBack // a newer template took its place in mid-release
		}
		return e.Outcome
	case state == pb.State_STATE_COMPLETED:
		return Promoted
	case state == pb.State_STATE_ROLLED_BACK:
		return RolledBack
	}
	return e.Outcome
}

// nextEntry is the first template that the history lacks: what the groups run, and then what the release brings.
func nextEntry(o Observation) *Entry {
	if o.HistoryLimit == 0 {
		return nil
	}
	bringing := o.releasedRevision()
	for _, revision := range o.Stable.revisions() {
		if revision != bringing && o.entry(revision) == nil && slices.Contains(o.Stable.Recorded, revision) {
			return &Entry{Revision: revision, Number: o.nextNumber(), At: o.Now, By: o.changedBy(revision)}
		}
	}
	if bringing == "" {
		return nil
	}
	r, e := o.Record.Release, o.entry(bringing)
	switch {
	case e == nil && !slices.Contains(o.Stable.Recorded, bringing):
		return nil // LWS has forgotten it already
	case e == nil:
		e = &Entry{Revision: bringing, Number: o.nextNumber()}
	case e.Problem != "" || e.Release == r.ID:
		return nil
	case e.Number != o.nextNumber()-1:
		e.Number = o.nextNumber()
	}
	e.At, e.By, e.Release, e.Owner = r.StartedAt, o.changedBy(bringing), r.ID, r.Owner
	e.Outcome, e.Ended = "", time.Time{}
	return e
}

// releasedRevision is the revision that the recorded release brings or has brought. Empty: none.
func (o Observation) releasedRevision() string {
	r := o.Record.Release
	if r == nil || r.Phase == record.Nothing || r.UpdateRevision == r.StableRevision {
		return ""
	}
	return r.UpdateRevision
}

// entry is a copy of the one for a revision, nil if there is none.
func (o Observation) entry(revision string) *Entry {
	for _, e := range o.History {
		if e.Revision == revision {
			return &e
		}
	}
	return nil
}

func (o Observation) nextNumber() int64 {
	var last int64
	for _, e := range o.History {
		last = max(last, e.Number)
	}
	return last + 1
}

// changedBy is who wrote the template of a revision, if it is the one in the spec.
func (o Observation) changedBy(revision string) string {
	if revision != o.Stable.Revision {
		return ""
	}
	return o.Stable.ChangedBy
}

// nextForgotten is the oldest entry that is too many. What somebody edited is neither counted nor touched: it is
// reported, and theirs to remove.
func nextForgotten(o Observation) string {
	var oldest *Entry
	kept := 0
	for _, e := range o.History {
		if e.Problem != "" {
			continue
		}
		kept++
		if (oldest == nil || e.Number < oldest.Number) && !o.needed(e.Revision) {
			oldest = &e
		}
	}
	if kept <= o.HistoryLimit || oldest == nil {
		return ""
	}
	return oldest.Revision
}

// needed says whether the entry of a revision has to stay whatever the limit: without a limit of at least one there is
// no history, and nothing is needed.
func (o Observation) needed(revision string) bool {
	if o.HistoryLimit == 0 {
		return false
	}
	r := o.Record.Release
	return revision == o.Stable.Revision || slices.Contains(o.Stable.revisions(), revision) ||
		r != nil && (revision == r.StableRevision || revision == r.UpdateRevision)
}

// Undo requests the template of an older revision back into the spec, where it waits under the hold for a release.
type Undo struct {
	// Revision is the template revision hash. Empty: the newest that served before the one in the spec.
	Revision string
}

// decide holds the workload in the same write: one that is not held would roll at once.
func (u Undo) decide(o Observation) (Decision, error) {
	if err := CheckWorkload(o); err != nil {
		return Decision{}, err
	}
	if err := checkRead(o); err != nil {
		return Decision{}, err
	}
	if InFlight(o) {
		return Decision{}, inProgress(o,
			"release %q of LeaderWorkerSet %s is not over: roll it back, or wait for its end, and then undo", o.release().ID, o.Key)
	}
	revision, err := u.Target(o)
	if err != nil || revision == o.Stable.Revision {
		return Decision{}, err
	}
	a := RestoreTemplate{Revision: revision}
	if o.Record == nil || !record.SameRolling(record.Hold(), o.Stable.Rolling) {
		record := NewRecord(o)
		if o.Record != nil {
			record.Saved = Saved(o)
		}
		a.Record = &record
	}
	return Decision{Action: a}, nil
}

// Target is the revision whose template is wanted. The error has an ErrorReason.
func (u Undo) Target(o Observation) (string, error) {
	if u.Revision == "" {
		return previous(o)
	}
	e := o.entry(u.Revision)
	switch {
	case e != nil && e.Problem != "":
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "%s", e.Problem)
	case e == nil && u.Revision != o.Stable.Revision && !slices.Contains(o.Stable.Recorded, u.Revision):
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"the history of LeaderWorkerSet %s has no revision %s (any more)%s. Bring its template back with kubectl apply or from Git",
			o.Key, u.Revision, entries(o))
	}
	return u.Revision, nil
}

// previous is the newest revision that served before the one in the spec.
func previous(o Observation) (string, error) {
	if o.Stable.Revision == "" {
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"the LeaderWorkerSet controller has not recorded the template of %s yet, so it can't be told what came before it", o.Key)
	}
	var newest Entry
	for _, e := range o.History {
		if e.Problem == "" && e.Revision != o.Stable.Revision && e.Outcome != RolledBack && e.Number > newest.Number {
			newest = e
		}
	}
	if newest.Revision == "" {
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"the history of LeaderWorkerSet %s has no revision that served before %s%s", o.Key, o.Stable.Revision, entries(o))
	}
	return newest.Revision, nil
}

// entries lists what the history has, for a message about what it lacks.
func entries(o Observation) string {
	if len(o.History) == 0 {
		return "; it is empty"
	}
	names := make([]string, 0, len(o.History))
	for _, e := range o.History {
		names = append(names, fmt.Sprintf("%d (%s)", e.Number, e.Revision))
	}
	return "; it has " + strings.Join(names, ", ")
}
