// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// workloadHeader returns the status of a workload and its release, without groups.
func workloadHeader(c *pb.BatchContext, now time.Time) string {
	rows := [][]string{workloadRow(plugin.WorkloadKey(c.GetWorkload()), c.GetReplicas(), c.GetSize(), len(c.GetRoles()) > 0)}
	if c.GetReleaseId() != "" {
		rows = append(rows, []string{"Release", releaseCell(c, now)})
	}
	rows = append(rows, []string{"State", stateText(c) + " " + OneLine(fmt.Sprintf("(%s) %s", c.GetReason(), c.GetMessage()))})
	if c.GetEndMessage() != "" {
		rows = append(rows, []string{"Why", OneLine(c.GetEndMessage())})
	}
	if BatchWord(c) != "-" {
		rows = append(rows, []string{"Batch", fmt.Sprintf("%s: %d/%d groups ready", BatchWord(c),
			c.GetUpdatedReady(), c.GetPlanned())})
	}
	rows = append(rows,
		ownGroups(c),
		[]string{"Revision", revisionCell(c)},
	)
	if c.GetTemplateRevision() != "" {
		rows = append(rows, []string{"Template", templateCell(c)})
	}
	if len(c.GetRoles()) > 0 {
		rows = append(rows, []string{"Roles", RoleCounts(c)})
	}
	if plugin.InFlight(c) && c.GetTrafficBasis() != pb.TrafficBasis_TRAFFIC_BASIS_UNSPECIFIED {
		rows = append(rows, []string{"Traffic", trafficCell(c)})
	}
	return alignColumns(rows)
}

// workloadRow has the size of a workload, unless that is the size of one of its roles.
func workloadRow(name string, groups, pods int32, roles bool) []string {
	if !roles {
		name += fmt.Sprintf(" (%s of %s)", countOf(groups, "group"), countOf(pods, "pod"))
	}
	return []string{"Workload", name}
}

// ownGroups counts the workload's own groups: from promotion on those at the update revision, until then those at the stable
// revision.
func ownGroups(c *pb.BatchContext) []string {
	switch c.GetState() {
	case pb.State_STATE_PROMOTING, pb.State_STATE_COMPLETED, pb.State_STATE_NOTHING_TO_RELEASE:
		return []string{"Groups", promotedGroups(c)}
	default:
		return []string{"Stable", fmt.Sprintf("%d/%d groups ready", c.GetStableReady(), stableGroups(c))}
	}
}

// stableGroups returns the desired number of stable groups. In place these are the groups that the batch does not replace, or the ready ones if there
// are more.
func stableGroups(c *pb.BatchContext) int32 {
	if replacing(c) {
		return max(c.GetReplicas()-c.GetDesired(), c.GetStableReady())
	}
	return c.GetReplicas()
}

// replacing reports whether batches replace stable groups.
func replacing(c *pb.BatchContext) bool {
	return c.GetStyle() == pb.Style_STYLE_PARTITION && plugin.InFlight(c) && !plugin.Ending(c)
}

// RoleCounts counts the ready groups of each role: the stable ones, and those of the update that the batch asks for.
func RoleCounts(c *pb.BatchContext) string {
	all := make([]string, 0, len(c.GetRoles()))
	for _, r := range c.GetRoles() {
		stable := r.GetReplicas()
		if replacing(c) {
			stable = r.GetStable()
		}
		text := fmt.Sprintf("%s %d/%d", OneLine(r.GetName()), r.GetStableReady(), stable)
		if r.GetPlanned()+r.GetUpdated() > 0 {
			text += fmt.Sprintf(" and %d/%d new", r.GetUpdatedReady(), max(r.GetPlanned(), r.GetUpdated()))
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func releaseCell(c *pb.BatchContext, now time.Time) string {
	text := c.GetReleaseId() + ", " + StyleWord(c.GetStyle())
	if c.GetOwner() != "" {
		text += ", by " + c.GetOwner()
	}
	if c.GetStartTime() != nil {
		text += ", began " + Age(now.Sub(c.GetStartTime().AsTime())) + " ago"
	}
	return OneLine(text)
}

func revisionCell(c *pb.BatchContext) string {
	if c.GetUpdateRevision() == "" || c.GetUpdateRevision() == c.GetStableRevision() {
		return orDash(c.GetStableRevision())
	}
	return orDash(c.GetStableRevision()) + " -> " + c.GetUpdateRevision()
}

// templateCell returns the revision of the template in the spec, and how many groups run it.
func templateCell(c *pb.BatchContext) string {
	at, all := int32(0), int32(0)
	for _, g := range c.GetGroups() {
		all++
		if g.GetRevision() == c.GetTemplateRevision() {
			at++
		}
	}
	switch {
	case all == 0 || c.GetGroupsOmitted() > 0:
		// The rows are only some of the groups, so they can't be counted.
		return c.GetTemplateRevision()
	case at == all:
		return c.GetTemplateRevision() + ", run by all groups"
	case at == 0:
		return c.GetTemplateRevision() + ", run by no group"
	default:
		return fmt.Sprintf("%s, run by %d of %s", c.GetTemplateRevision(), at, countOf(all, "group"))
	}
}

// trafficCell returns the shares of the revisions: of requests if the release routes them, and otherwise of ready groups, since
// requests then reach any ready group.
func trafficCell(c *pb.BatchContext) string {
	text, how := "update revision %d%%, stable revision %d%% of ready groups (%s)", "not routed"
	if routesRequests(c) {
		text, how = "canary %d%%, stable %d%% of requests (%s)", "routed"+requestedShare(c)
	}
	return fmt.Sprintf(text, c.GetTrafficWeight(), 100-c.GetTrafficWeight(), how)
}

// requestedShare returns the requested share of the canary if the routes have another one.
func requestedShare(c *pb.BatchContext) string {
	if !routesRequests(c) || c.RequestedWeight == nil || c.GetRequestedWeight() == c.GetTrafficWeight() {
		return ""
	}
	return fmt.Sprintf(", %d%% requested", c.GetRequestedWeight())
}

func routesRequests(c *pb.BatchContext) bool {
	return c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
}

// PodCount returns how many of the group's pods are ready, and of how many.
func PodCount(g *pb.Group) string { return fmt.Sprintf("%d/%d", g.GetReadyPods(), g.GetPods()) }

// readySince returns for how long the group has been ready, or has not.
func readySince(g *pb.Group, now time.Time) string {
	if g.GetSince() == nil {
		return "-"
	}
	return Age(now.Sub(g.GetSince().AsTime()))
}

// Status returns the header and the tree, as `lockstep status` prints them.
func Status(c *pb.BatchContext, now time.Time, all bool) string {
	if all {
		return statusTree(c, now, math.MaxInt)
	}
	return statusTree(c, now, readyShown)
}

// statusTree returns the header and a tree with so many ready groups in each branch.
func statusTree(c *pb.BatchContext, now time.Time, ready int) string {
	text := workloadHeader(c, now)
	if drawn := drawTree(c, now, ready); drawn != "" {
		text += "\n" + drawn
	}
	if n := c.GetGroupsOmitted(); n > 0 {
		text += fmt.Sprintf("... and %s\n", countOf(n, "more group"))
	}
	return text
}

// List returns a table of workloads under hold and of others, in the order of their namespaces and names. Empty means none. flags are
// those that reach the cluster and, unless namespaces are shown, the namespace.
func List(held []*pb.BatchContext, others []*pb.WorkloadRef, namespaces bool, flags string) string {
	var rows [][]string
	for _, c := range held {
		ready := c.GetStableReady()
		if ownGroups(c)[0] == "Groups" || c.GetStyle() == pb.Style_STYLE_PARTITION {
			ready = min(ready+c.GetUpdatedReady(), c.GetReplicas()) // both are the workload's own
		}
		ref := c.GetWorkload()
		rows = append(rows, []string{
			ref.GetNamespace(), plugin.NameOf(ref), StateWord(WorkloadState(c)), BatchWord(c), fmt.Sprintf("%d/%d", ready, c.GetReplicas()), OneLine(c.GetMessage()),
		})
	}
	for _, ref := range others {
		adopt := "lockstep adopt " + plugin.NameOf(ref)
		if namespaces {
			adopt += " -n " + ref.GetNamespace()
		}
		rows = append(rows, []string{ref.GetNamespace(), plugin.NameOf(ref), "not adopted", "-", "-", "a template change rolls out at once: " + adopt + flags})
	}
	if len(rows) == 0 {
		return ""
	}
	slices.SortFunc(rows, func(a, b []string) int { return slices.Compare(a[:2], b[:2]) })
	rows = append([][]string{{"NAMESPACE", "NAME", "STATE", "BATCH", "READY", "MESSAGE"}}, rows...)
	if !namespaces {
		for i := range rows {
			rows[i] = rows[i][1:]
		}
	}
	return alignColumns(rows)
}

// trailing matches the spaces at the end of a line whose last cells are empty.
var trailing = regexp.MustCompile(" +\n")

// alignColumns aligns cells. Only the last one of a row may have a style, which would count as characters.
func alignColumns(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
	return trailing.ReplaceAllString(b.String(), "\n")
}

func orDash(s string) string { return cmp.Or(s, "-") }
