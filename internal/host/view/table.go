// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const gap = "  "

// Header returns the status of a workload and its release, without groups.
func Header(c *pb.BatchContext, now time.Time) string {
	rows := [][]string{
		{"Workload", fmt.Sprintf("%s (%s of %s)", workload(c), count(c.GetReplicas(), "group"), count(c.GetSize(), "pod"))},
	}
	if c.GetReleaseId() != "" {
		rows = append(rows, []string{"Release", release(c, now)})
	}
	rows = append(rows, []string{"State", stateText(c) + " " + OneLine(fmt.Sprintf("(%s) %s", c.GetReason(), c.GetMessage()))})
	if c.GetEndMessage() != "" {
		rows = append(rows, []string{"Why", OneLine(c.GetEndMessage())})
	}
	if plugin.InFlight(c) && BatchWord(c) != "-" && c.GetState() != pb.State_STATE_PROMOTING {
		rows = append(rows, []string{"Batch", fmt.Sprintf("%s: %d/%d groups ready", BatchWord(c),
			c.GetUpdatedReady(), c.GetPlanned())})
	}
	rows = append(rows,
		ownGroups(c),
		[]string{"Revision", revisions(c)},
	)
	if plugin.InFlight(c) && c.GetTrafficBasis() != pb.TrafficBasis_TRAFFIC_BASIS_UNSPECIFIED {
		rows = append(rows, []string{"Traffic", traffic(c)})
	}
	return columns(rows)
}

// ownGroups counts the workload's own groups: from promotion on those at the update revision, until then those at the stable
// revision.
func ownGroups(c *pb.BatchContext) []string {
	switch c.GetState() {
	case pb.State_STATE_PROMOTING, pb.State_STATE_COMPLETED, pb.State_STATE_NOTHING_TO_RELEASE:
		return []string{"Groups", promoted(c)}
	default:
		return []string{"Stable", fmt.Sprintf("%d/%d groups ready", c.GetStableReady(), c.GetReplicas())}
	}
}

func release(c *pb.BatchContext, now time.Time) string {
	text := c.GetReleaseId() + ", " + StyleWord(c.GetStyle())
	if c.GetOwner() != "" {
		text += ", by " + c.GetOwner()
	}
	if c.GetStartTime() != nil {
		text += ", began " + Age(now.Sub(c.GetStartTime().AsTime())) + " ago"
	}
	return OneLine(text)
}

func revisions(c *pb.BatchContext) string {
	if c.GetUpdateRevision() == "" || c.GetUpdateRevision() == c.GetStableRevision() {
		return orDash(c.GetStableRevision())
	}
	return orDash(c.GetStableRevision()) + " -> " + c.GetUpdateRevision()
}

// traffic returns the shares of the revisions: of requests if the release routes them, and otherwise of ready groups, since
// requests then reach any ready group.
func traffic(c *pb.BatchContext) string {
	text, how := "update revision %d%%, stable revision %d%% of ready groups (%s)", "not routed"
	if routed(c) {
		text, how = "canary %d%%, stable %d%% of requests (%s)", "routed"+requested(c)
	}
	return fmt.Sprintf(text, c.GetTrafficWeight(), 100-c.GetTrafficWeight(), how)
}

// requested returns the requested share of the canary if the routes have another one.
func requested(c *pb.BatchContext) string {
	if !routed(c) || c.RequestedWeight == nil || c.GetRequestedWeight() == c.GetTrafficWeight() {
		return ""
	}
	return fmt.Sprintf(", %d%% requested", c.GetRequestedWeight())
}

func routed(c *pb.BatchContext) bool {
	return c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
}

// Groups returns a heading and one row per group, or "" without groups.
func Groups(groups []*pb.Group, now time.Time) string {
	if len(groups) == 0 {
		return ""
	}
	rows := [][]string{{"ROLE", "GROUP", "LEADER", "REVISION", "PODS", "SINCE", "STATUS"}}
	for _, g := range groups {
		rows = append(rows, []string{
			RoleWord(g.GetRole()), fmt.Sprint(g.GetIndex()), g.GetLeader(), orDash(g.GetRevision()),
			podCount(g), since(g, now), groupStatus(g),
		})
	}
	return columns(rows)
}

// podCount returns how many of the group's pods are ready, and of how many.
func podCount(g *pb.Group) string { return fmt.Sprintf("%d/%d", g.GetReadyPods(), g.GetPods()) }

// since returns for how long the group has been ready, or has not.
func since(g *pb.Group, now time.Time) string {
	if g.GetSince() == nil {
		return "-"
	}
	return Age(now.Sub(g.GetSince().AsTime()))
}

func groupStatus(g *pb.Group) string {
	if g.GetReady() {
		return "ready"
	}
	if p := Problem(g); p != "" {
		return p
	}
	return "not ready"
}

// Status returns the header and the tree, as `lockstep status` prints them.
func Status(c *pb.BatchContext, now time.Time, all bool) string {
	text := Header(c, now)
	if tree := Tree(c, now, all); tree != "" {
		text += "\n" + tree
	}
	return text + moreGroups(int(c.GetGroupsOmitted()))
}

// moreGroups returns the line for groups that are not shown, if there are any.
func moreGroups(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("... and %s\n", count(int32(n), "more group")) //nolint:gosec // a number of groups
}

// columns aligns cells. No line ends in a space.
func columns(rows [][]string) string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], lipgloss.Width(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-lipgloss.Width(cell)) + gap)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// fit returns at most n groups, unready ones first, and the number of the others.
func fit(groups []*pb.Group, n int) (shown []*pb.Group, hidden int) {
	if len(groups) <= n {
		return groups, 0
	}
	n = max(n, 0)
	return unreadyFirst(groups)[:n], len(groups) - n
}

// unreadyFirst returns the groups in the order in which they matter most.
func unreadyFirst(groups []*pb.Group) []*pb.Group {
	ordered := slices.Clone(groups)
	slices.SortStableFunc(ordered, func(a, b *pb.Group) int { return rank(a) - rank(b) })
	return ordered
}

func rank(g *pb.Group) int {
	switch {
	case !g.GetReady():
		return 0
	case g.GetUpdated():
		return 1
	default:
		return 2
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
