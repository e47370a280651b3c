// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	"sigs.k8s.io/yaml"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// History returns one row per revision, in the order of all, which has the newest first.
func History(all []*pb.Revision, now time.Time) string {
	if len(all) == 0 {
		return "no history yet: it begins when the workload is adopted\n"
	}
	rows := HistoryRows(all, func(at time.Time) string { return Age(now.Sub(at)) + " ago" })
	for i, row := range rows {
		rows[i] = slices.Delete(row, 5, 6) // OUTCOME has an identity: one is enough of a line
	}
	return alignColumns(append([][]string{{"", "REVISION", "HASH", "WHEN", "IMAGES", "RELEASE", "OUTCOME"}}, rows...))
}

// HistoryRows returns the cells of each revision: mark, number, hash, time as when formats it, images, editor, release and outcome.
func HistoryRows(all []*pb.Revision, when func(time.Time) string) [][]string {
	rows := make([][]string, 0, len(all))
	for i, r := range all {
		number, at := "-", "-"
		if r.GetNumber() > 0 {
			number = strconv.FormatInt(r.GetNumber(), 10)
		}
		if r.GetCreateTime() != nil {
			at = when(r.GetCreateTime().AsTime())
		}
		var before *pb.Revision
		if i+1 < len(all) {
			before = all[i+1]
		}
		row := []string{
			revisionMark(r), number, r.GetName(), at, imageChanges(r, before), orDash(r.GetChangedBy()), orDash(r.GetReleaseId()), outcomeWord(r),
		}
		for i := range row {
			// Images, users and messages are text of others, which may have control characters.
			row[i] = OneLine(row[i])
		}
		rows = append(rows, row)
	}
	return rows
}

func revisionMark(r *pb.Revision) string {
	switch {
	case r.GetStable():
		return "*"
	case r.GetCurrent():
		return ">"
	default:
		return ""
	}
}

func outcomeWord(r *pb.Revision) string {
	switch {
	case r.GetProblem() != "":
		return "can't be trusted: edited"
	case r.GetOutcome() == pb.State_STATE_COMPLETED:
		return "promoted" + byWhom(r)
	case r.GetOutcome() != pb.State_STATE_UNSPECIFIED:
		return StateWord(r.GetOutcome()) + byWhom(r)
	case r.GetNumber() == 0 && !r.GetStable():
		return "waits for a release"
	case r.GetReleaseId() != "":
		return "unknown"
	default:
		return "-" // older than the first release
	}
}

// byWhom says who requested the end, and why.
func byWhom(r *pb.Revision) string {
	text := ""
	if r.GetEndedBy() != "" {
		text = " by " + r.GetEndedBy()
	}
	if r.GetEndMessage() != "" {
		text += ": " + OneLine(r.GetEndMessage())
	}
	return text
}

// imageChanges returns the images that are not in the revision before, and all images of the first revision.
func imageChanges(r, before *pb.Revision) string {
	if before == nil {
		return orDash(strings.Join(r.GetImages(), ", "))
	}
	var changed []string
	for _, image := range r.GetImages() {
		if !slices.Contains(before.GetImages(), image) {
			changed = append(changed, image)
		}
	}
	return orDash(strings.Join(changed, ", "))
}

// RevisionName returns the number of a revision, or the hash of one without.
func RevisionName(r *pb.Revision) string {
	if r.GetNumber() == 0 {
		return r.GetName()
	}
	return strconv.FormatInt(r.GetNumber(), 10)
}

// contextLines is the number of lines around a difference, as in diff -u.
const contextLines = 3

// Diff returns the unified diff of two templates as YAML, empty if they are the same.
func Diff(from, to *pb.Revision) (string, error) {
	d := difflib.UnifiedDiff{Context: contextLines}
	for _, side := range []struct {
		revision *pb.Revision
		name     *string
		lines    *[]string
	}{{from, &d.FromFile, &d.A}, {to, &d.ToFile, &d.B}} {
		if side.revision.GetTemplate() == "" {
			return "", fmt.Errorf("the template of revision %s can't be read", RevisionName(side.revision))
		}
		text, err := yaml.JSONToYAML([]byte(side.revision.GetTemplate()))
		if err != nil {
			return "", fmt.Errorf("read the template of revision %s: %w", RevisionName(side.revision), err)
		}
		*side.name, *side.lines = "revision "+RevisionName(side.revision), difflib.SplitLines(string(text))
	}
	text, err := difflib.GetUnifiedDiffString(d)
	if err != nil {
		return "", fmt.Errorf("compare revisions %s and %s: %w", RevisionName(from), RevisionName(to), err)
	}
	return text, nil
}
