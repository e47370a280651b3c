// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// StateWord returns the state in lower case, as in "rolling back".
func StateWord(state pb.State) string {
	word := strings.TrimPrefix(state.String(), "STATE_")
	return strings.ToLower(strings.ReplaceAll(word, "_", " "))
}

// WorkloadState returns the state of a workload: holding, as before its first release, if a template waits that the last release was not about.
func WorkloadState(c *pb.BatchContext) pb.State {
	if c.GetReason() == plan.ReasonNewRevisionWaits {
		return pb.State_STATE_HOLDING
	}
	return c.GetState()
}

// Running reports whether a release is in flight or has failed.
func Running(c *pb.BatchContext) bool {
	return plugin.InFlight(c) || c.GetState() == pb.State_STATE_FAILED
}

// StyleWord returns the style as the documentation spells it.
func StyleWord(style pb.Style) string {
	return plugin.CamelCase(strings.TrimPrefix(style.String(), "STYLE_"))
}

// roleWord returns the role in lower case.
func roleWord(role pb.GroupRole) string {
	return strings.ToLower(strings.TrimPrefix(role.String(), "GROUP_ROLE_"))
}

// GroupWord returns the role and the index of a group, as in "canary 0".
func GroupWord(g *pb.Group) string { return fmt.Sprintf("%s %d", roleWord(g.GetRole()), g.GetIndex()) }

// BatchWord returns the batch, as in "2/3 (50%)", a target without a batch, as in "50%", or "-". While a release ends, its batch no longer
// describes what happens.
func BatchWord(c *pb.BatchContext) string {
	switch {
	case plugin.Ending(c) || !plugin.InFlight(c):
		return "-"
	case c.CurrentBatch != nil:
		return fmt.Sprintf("%d/%d (%s)", c.GetCurrentBatch()+1, c.GetBatches(), c.GetTarget())
	case c.GetTarget() != "":
		return c.GetTarget()
	default:
		return "-"
	}
}

// countOf returns "1 group" or "2 groups".
func countOf(n int32, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Age returns d as kubectl prints ages: "90s", "3m12s", "125m", "27h". A negative one, from clocks that differ, is "0s".
func Age(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }

// OneLine is Printable without line breaks.
func OneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return r
	}, Printable(s)))
}

// Printable replaces by spaces the characters that move, color or reorder what a terminal shows: control characters but for line breaks
// and tabs, and those that set the direction of text.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.Is(unicode.Cc, r), unicode.Is(unicode.Bidi_Control, r), r == '\u2028' || r == '\u2029':
			return ' '
		default:
			return r
		}
	}, s)
}

// Progress returns the context in one line.
func Progress(c *pb.BatchContext) string {
	state := StateWord(c.GetState())
	switch c.GetState() {
	case pb.State_STATE_UPGRADING, pb.State_STATE_VERIFYING, pb.State_STATE_READY:
		return fmt.Sprintf("%s: batch %s, %d/%d groups ready, stable %d/%d ready, %s",
			state, BatchWord(c), c.GetUpdatedReady(), c.GetPlanned(), c.GetStableReady(), stableGroups(c), Weight(c))
	case pb.State_STATE_PROMOTING:
		text := fmt.Sprintf("%s: groups %s", state, promotedGroups(c))
		if routesRequests(c) {
			text += ", " + Weight(c)
		}
		return text
	case pb.State_STATE_FAILED:
		return OneLine(fmt.Sprintf("%s (%s): %s", state, c.GetReason(), c.GetMessage()))
	default:
		return OneLine(fmt.Sprintf("%s: %s", state, c.GetMessage()))
	}
}

// Weight returns the share of the update revision, of requests or of ready groups.
func Weight(c *pb.BatchContext) string {
	if routesRequests(c) {
		return fmt.Sprintf("canary gets %d%% of requests", c.GetTrafficWeight()) + requestedShare(c)
	}
	return fmt.Sprintf("%d%% of ready groups are new", c.GetTrafficWeight())
}

// progressKey is the same for two contexts with the same state, batch, counts and traffic. The message of a failed release
// is left out, since groups have lines of their own.
func progressKey(c *pb.BatchContext) string {
	if c.GetState() == pb.State_STATE_FAILED {
		return fmt.Sprint(c.GetState(), c.GetReason(), BatchWord(c), c.GetUpdatedReady(), c.GetPlanned())
	}
	return Progress(c)
}

// promotedGroups counts the groups that a promotion updates, as in "3/4 ready at 5b459954f8": the workload's own, or before them a second set.
func promotedGroups(c *pb.BatchContext) string {
	own := func(g *pb.Group) bool {
		return g.GetRole() == pb.GroupRole_GROUP_ROLE_STABLE && g.GetRevision() == c.GetUpdateRevision()
	}
	if c.GetStyle() == pb.Style_STYLE_BLUE_GREEN && c.GetUpdated() > 0 && len(c.GetGroups()) > 0 && !slices.ContainsFunc(c.GetGroups(), own) {
		return fmt.Sprintf("of the second set %d/%d ready at %s", c.GetUpdatedReady(), c.GetPlanned(), orDash(c.GetUpdateRevision()))
	}
	return fmt.Sprintf("%d/%d ready at %s", c.GetUpdatedReady(), c.GetReplicas(), orDash(c.GetUpdateRevision()))
}

// Problem returns why the group is not ready, and because of which pod.
func Problem(g *pb.Group) string {
	text := podProblem(g)
	if text != "" && g.GetPod() != "" {
		text = "pod " + OneLine(g.GetPod()) + ": " + text
	}
	return text
}

// podProblem returns why the group's pod blocks it. The message says what the reason does.
func podProblem(g *pb.Group) string { return OneLine(cmp.Or(g.GetMessage(), g.GetReason())) }

// Style is a colour or weight of text, as the parameters of an SGR escape sequence.
type Style string

// Colours are of the terminal's own 16, so that they fit its background, and can be distinguished with red-green colour
// blindness. No information depends on colour: the writer of the command line removes them for NO_COLOR and where there is no
// terminal.
const (
	Alert  Style = "1;91"
	Active Style = "36"
	Good   Style = "92"
	Other  Style = "95"
	Faint  Style = "2"
)

// Render returns text in the style.
func (s Style) Render(text string) string {
	if s == "" || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + reset
}

const reset = "\x1b[m"

// styles matches what Render adds.
var styles = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Plain returns text without styles.
func Plain(text string) string { return styles.ReplaceAllString(text, "") }

// Others are plain.
var (
	severityStyles = map[pb.Severity]Style{pb.Severity_SEVERITY_ERROR: Alert, pb.Severity_SEVERITY_WARNING: Other}
	stateStyles    = map[pb.State]Style{
		pb.State_STATE_FAILED: Alert, pb.State_STATE_READY: Good, pb.State_STATE_COMPLETED: Good,
		pb.State_STATE_ROLLING_BACK: Other, pb.State_STATE_ROLLED_BACK: Other, pb.State_STATE_PREPARING: Active,
		pb.State_STATE_UPGRADING: Active, pb.State_STATE_VERIFYING: Active, pb.State_STATE_PROMOTING: Active,
	}
)

// stateText returns the state of a workload in its colour.
func stateText(c *pb.BatchContext) string {
	state := WorkloadState(c)
	return stateStyles[state].Render(StateWord(state))
}
