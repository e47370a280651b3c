// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Entry is one revision in the driver's own history of the workload: LWS forgets a template once no group runs it.
type Entry struct {
	// Revision is the template revision hash, which is unique in the history.
	Revision string
	// Number increases with each release. A revision that is released again gets a new number.
	Number int64
	// At is when its release began, or when the revision was first seen.
	At time.Time
	// By is the field manager that wrote it to the spec. Empty means unknown.
	By string
	// Release and Owner are of the release that introduced it. Empty means it predates the first release.
	Release, Owner string
	// StartedBy and EndedBy are the authenticated users who began that release, and who requested its promotion or rollback last.
	StartedBy, EndedBy string `json:",omitempty"`
	// EndMessage is why that end was requested.
	EndMessage string `json:",omitempty"`
	// Outcome is how that release ended, at Ended. Empty means that it has not, or the end was not observed.
	Outcome Outcome
	Ended   time.Time
	// Template is the digest of the stored template.
	Template string
	// Problem is why the entry can't be trusted: it was edited, or a newer driver wrote it. Empty means that it can.
	Problem string
}

// Outcome is how a release ended.
type Outcome string

// The ends of a release.
const (
	Promoted   Outcome = "Promoted"
	RolledBack Outcome = "RolledBack"
)

// SaveRevision creates an entry with its template, or updates what is known of an existing one.
type SaveRevision struct{ Entry Entry }

// DeleteRevision deletes an entry.
type DeleteRevision struct{ Revision string }

// RestoreTemplate writes an older template to the spec. The workload is held from the same request on.
type RestoreTemplate struct {
	Revision string
	// Record is written in the same request, with the hold. Nil means that the workload is held already.
	Record *record.Record
}

func (SaveRevision) action()    {}
func (DeleteRevision) action()  {}
func (RestoreTemplate) action() {}

// IsHistory reports whether an action writes the history and nothing else.
func IsHistory(action Action) bool {
	switch action.(type) {
	case SaveRevision, DeleteRevision:
		return true
	default:
		return false
	}
}

func (a SaveRevision) String() string {
	e := a.Entry
	switch {
	case e.Outcome != "":
		return fmt.Sprintf("record in the history that revision %s, number %d, was %s", e.Revision, e.Number, e.Outcome.words())
	case e.Release == "":
		return fmt.Sprintf("save the template of revision %s in the history, as number %d", e.Revision, e.Number)
	}
	return fmt.Sprintf("save the template of revision %s in the history, as number %d, of release %s", e.Revision, e.Number, e.Release)
}
func (a DeleteRevision) String() string  { return "delete revision " + a.Revision + " from the history" }
func (a RestoreTemplate) String() string { return "restore the template of revision " + a.Revision }

func (o Outcome) words() string {
	if o == RolledBack {
		return "rolled back"
	}
	return "promoted"
}

// ReasonRecording means that the release is over except for its outcome in the history.
const ReasonRecording = "RecordingOutcome"

// keepHistory updates the history after all other writes: no group waits for it. But a release is over only once its
// outcome is in the history, since the next release replaces it in the record.
func keepHistory(o Observation, d Decision) Decision {
	if d.Action != nil || o.HistoryUnread || o.Record == nil || o.Stable.Deleting || d.Reason == ReasonStyleNotSupported || o.handingOver() {
		return d // a handover transfers the history
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
	} else if revision := nextPruned(o); revision != "" {
		d.Action = DeleteRevision{revision}
	}
	return d
}

// isEnding reports whether the release is over except for what ends by itself: its outcome in the history, and the time of autoscalers that it held.
func (o Observation) isEnding() bool {
	switch reconcile(o).Reason {
	case ReasonRecording:
		return true
	case ReasonAutoscalerLingers, ReasonReleasingAutoscaler:
		return o.release() != nil && o.Refused == nil
	}
	return false
}

// nextOutcome returns the first entry whose outcome has changed, or nil.
func nextOutcome(o Observation, state pb.State) *Entry {
	for _, e := range o.History {
		if e.Problem != "" || e.Release == "" || o.HistoryLimit == 0 {
			continue
		}
		if now := o.outcomeOf(e, state); now != e.Outcome {
			e.Outcome, e.Ended = now, o.Now
			if r := o.Record.Release; r.ID == e.Release && r.UpdateRevision == e.Revision {
				e.EndedBy, e.EndMessage = r.EndedBy, r.EndMessage
			}
			return &e
		}
	}
	return nil
}

// outcomeOf returns how the release of an entry ended, as far as it is known now.
func (o Observation) outcomeOf(e Entry, state pb.State) Outcome {
	r := o.Record.Release
	switch {
	case r == nil || r.ID != e.Release:
		return e.Outcome
	case r.UpdateRevision != e.Revision && r.StableRevision == e.Revision:
		return Promoted // every group ran it when a newer template replaced it
	case r.UpdateRevision != e.Revision:
		if e.Outcome == "" {
			return RolledBack // a newer template replaced it in mid-release
		}
		return e.Outcome
	case state == pb.State_STATE_COMPLETED:
		return Promoted
	case state == pb.State_STATE_ROLLED_BACK:
		return RolledBack
	}
	return e.Outcome
}

// nextEntry returns the first missing entry: of a revision that groups run, then of the update revision.
func nextEntry(o Observation) *Entry {
	if o.HistoryLimit == 0 {
		return nil
	}
	update := o.releasedRevision()
	for _, revision := range o.Stable.distinctRevisions() {
		if revision != update && o.entryOf(revision) == nil && slices.Contains(o.Stable.Recorded, revision) {
			return &Entry{Revision: revision, Number: o.nextNumber(), At: o.Now, By: o.changedBy(revision)}
		}
	}
	if update == "" {
		return nil
	}
	r, e := o.Record.Release, o.entryOf(update)
	switch {
	case e == nil && !slices.Contains(o.Stable.Recorded, update):
		return nil // LWS has forgotten it already
	case e == nil:
		e = &Entry{Revision: update, Number: o.nextNumber()}
	case e.Problem != "" || e.Release == r.ID && e.At.Equal(r.StartedAt):
		return nil
	// A revision that is released again becomes the newest, so that undo finds the one before it.
	case e.Number != o.nextNumber()-1:
		e.Number = o.nextNumber()
	}
	e.At, e.By, e.Release, e.Owner = r.StartedAt, o.changedBy(update), r.ID, r.Owner
	e.StartedBy, e.EndedBy, e.EndMessage = r.StartedBy, "", ""
	e.Outcome, e.Ended = "", time.Time{}
	return e
}

// releasedRevision returns the update revision of the recorded release, or "" if there is none.
func (o Observation) releasedRevision() string {
	r := o.Record.Release
	if r == nil || r.Phase == record.Nothing || r.UpdateRevision == r.StableRevision {
		return ""
	}
	return r.UpdateRevision
}

// entryOf returns a copy of the entry of a revision, or nil.
func (o Observation) entryOf(revision string) *Entry {
	for _, e := range o.History {
		if e.Revision == revision {
			return &e
		}
	}
	return nil
}

// hasTemplate reports whether the template of a revision is known, from the history or from LWS.
func (o Observation) hasTemplate(revision string) bool {
	if e := o.entryOf(revision); e != nil {
		return e.Problem == ""
	}
	return slices.Contains(o.Stable.Recorded, revision)
}

// howToRestore says how the template of a revision is restored.
func (o Observation) howToRestore(revision string) string {
	if o.hasTemplate(revision) {
		return fmt.Sprintf("run `lockstep undo %s --to-revision %s`", o.inCommands(), revision)
	}
	return "restore the old template with kubectl apply or from Git"
}

// newestServed returns the newest readable revision in the history that has served, other than one, "" if there is none. A release whose end
// was not observed is no evidence of that: its record may have been removed.
func (o Observation) newestServed(but string) string {
	var newest Entry
	all := o.Stable.distinctRevisions()
	for _, e := range o.History {
		runs := len(all) == 1 && all[0] == e.Revision
		served := e.Outcome == Promoted || e.Outcome == "" && (e.Release == "" || runs)
		if served && e.Problem == "" && e.Number > newest.Number && e.Revision != but {
			newest = e
		}
	}
	return newest.Revision
}

func (o Observation) nextNumber() int64 {
	var last int64
	for _, e := range o.History {
		last = max(last, e.Number)
	}
	return last + 1
}

// changedBy returns who wrote the template of a revision, if it is the one in the spec.
func (o Observation) changedBy(revision string) string {
	if revision != o.Stable.Revision {
		return ""
	}
	return o.Stable.ChangedBy
}

// nextPruned returns the oldest revision above the limit. Entries that were edited are neither counted nor deleted: they
// are reported, and left to the user.
func nextPruned(o Observation) string {
	var oldest *Entry
	kept := 0
	for _, e := range o.History {
		if e.Problem != "" {
			continue
		}
		kept++
		if (oldest == nil || e.Number < oldest.Number) && !o.inUse(e.Revision) {
			oldest = &e
		}
	}
	if kept <= o.HistoryLimit || oldest == nil {
		return ""
	}
	return oldest.Revision
}

// inUse reports whether the entry of a revision has to stay whatever the limit. With a limit of 0 there is no history.
func (o Observation) inUse(revision string) bool {
	if o.HistoryLimit == 0 {
		return false
	}
	r := o.Record.Release
	return revision == o.Stable.Revision || slices.Contains(o.Stable.distinctRevisions(), revision) ||
		r != nil && (revision == r.StableRevision || revision == r.UpdateRevision)
}

// Undo requests that the template of an older revision is restored to the spec, where it waits under the hold for a
// release.
type Undo struct {
	// Revision is the template revision hash. Empty means the newest that served before Template, or before the one in the spec.
	Revision string
	// Template is the revision of the template that the caller means to replace. Empty means any.
	Template string `json:",omitempty"`
}

// decide holds the workload in the same write; otherwise LWS would roll it at once.
func (u Undo) decide(o Observation) (Decision, error) {
	if err := CheckWorkload(o); err != nil {
		return Decision{}, err
	}
	if err := checkRead(o); err != nil {
		return Decision{}, err
	}
	if InFlight(o) {
		return Decision{}, inProgress(o,
			"release %q of %s is not over: roll it back, or wait for its end, and then undo", o.release().ID, o.objectName())
	}
	revision, err := u.Target(o)
	if err != nil || revision == o.Stable.Revision {
		return Decision{}, err
	}
	if err := checkTemplateRevision(o, u.Template); err != nil {
		return Decision{}, err
	}
	if err := checkFirstHold(o); err != nil {
		return Decision{}, err
	}
	if first := o.holdChildren(); first != nil {
		return Decision{Action: first}, nil // no write covers both
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

// Target returns the revision to restore. The error has an ErrorReason.
func (u Undo) Target(o Observation) (string, error) {
	if u.Revision == "" {
		return previousRevision(o, cmp.Or(u.Template, o.Stable.Revision))
	}
	e := o.entryOf(u.Revision)
	switch {
	case e != nil && e.Problem != "":
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "%s", e.Problem)
	case e == nil && u.Revision != o.Stable.Revision && !slices.Contains(o.Stable.Recorded, u.Revision):
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"the history of %s has no revision %s%s. Restore its template with kubectl apply or from Git",
			o.objectName(), u.Revision, listRevisions(o))
	}
	return u.Revision, nil
}

// previousRevision returns the newest revision that served before another one.
func previousRevision(o Observation, before string) (string, error) {
	if o.Stable.Revision == "" {
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"the LeaderWorkerSet controller has not recorded the template of %s yet, so the revision before it is unknown", o.objectName())
	}
	newest := o.newestServed(before)
	if newest == "" {
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"the history of %s has no revision that served before %s%s", o.objectName(), before, listRevisions(o))
	}
	return newest, nil
}

// listRevisions lists the revisions in the history, for messages about one that is missing.
func listRevisions(o Observation) string {
	if len(o.History) == 0 {
		return "; it is empty"
	}
	names := make([]string, 0, len(o.History))
	for _, e := range o.History {
		names = append(names, fmt.Sprintf("%d (%s)", e.Number, e.Revision))
	}
	return "; it has " + strings.Join(names, ", ")
}
