// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/netns"
	"github.com/lockstep-rollouts/lockstep/test/node"
)

// suite is a set of tests that run together on one control plane.
type suite struct {
	name     string
	packages []string
	// only and apart are tests of the packages: the suite has only these, or all but these.
	only, apart []string
	// budget bounds what its tests of the level test may cost. A zero budget bounds nothing.
	budget budget
	// run is a pattern for the names of tests; "" means all.
	run string
	// alone: no other suite runs beside it, since it judges requests in real time.
	alone bool
	// needs are the components of the cluster beside Kubernetes, LWS and KWOK.
	needs []cluster.Option
	// lacks returns what this machine lacks for the suite, or for those of its tests that demanding has, or nil if it runs anywhere.
	lacks func() error
	// demanding are tests that skip themselves on a machine that lacks what they need.
	demanding []string
}

// monitored are the tests of test/e2e that need Prometheus or a browser.
var monitored = []string{"TestGates", "TestDashboard", "TestDashboardDriver", "TestDashboardPage"}

// disaggregated are the tests of test/e2e about DisaggregatedSets.
var disaggregated = []string{
	"TestDisaggregatedHeld", "TestDisaggregatedGroupFails", "TestDisaggregatedReleased", "TestDisaggregatedBlueGreen", "TestDisaggregatedShifted", "TestDisaggregatedUndone",
	"TestDisaggregatedRoleScaler", "TestDisaggregatedSlices", "TestDisaggregatedLegacySlices", "TestDisaggregatedFaults", "TestDisaggregatedForeign", "TestDisaggregatedRefused", "TestDisaggregatedRoles",
	"TestDisaggregatedScaledToZero", "TestDisaggregatedEmptied", "TestDisaggregatedPromotionAborted", "TestDisaggregatedMarks", "TestDisaggregatedNamespaced", "TestDisaggregatedRights",
}

// whole has every end-to-end test. The longest suites are first, and those that run alone are last.
var whole = []suite{
	{name: "e2e", packages: []string{"./e2e"}, apart: slices.Concat(monitored, disaggregated), budget: budget{tests: 158, writes: 30500}},
	{name: "argo", packages: []string{"./argo"}, needs: []cluster.Option{cluster.WithTraefik(), cluster.WithArgo()}},
	{name: "kruise", packages: []string{"./kruise"}, needs: []cluster.Option{cluster.WithGatewayAPI(), cluster.WithKruise()}},
	{name: "batchrelease", packages: []string{"./batchrelease"}},
	{
		name: "cluster", packages: []string{"./cluster", "./netns"}, needs: []cluster.Option{cluster.WithTraefik()},
		lacks: netns.NodePossible, demanding: []string{"TestNodeIsGone"},
	},
	{
		name: "disaggregated", packages: []string{"./e2e"}, only: disaggregated,
		lacks: scalersOfRoles, demanding: []string{"TestDisaggregatedRoleScaler", "TestDisaggregatedSlices", "TestDisaggregatedLegacySlices"},
	},
	{name: "monitoring", packages: []string{"./e2e"}, only: monitored, needs: []cluster.Option{cluster.WithPrometheus()}},
	{name: "install", packages: []string{"./install"}, needs: []cluster.Option{cluster.WithInstallers(), cluster.WithPrometheus()}},
	{name: "artifacts", packages: []string{"github.com/lockstep-rollouts/lockstep/tools/release", "./docs"}},
	{name: "commands", packages: []string{"./commands"}, needs: []cluster.Option{cluster.WithInstallers()}},
	{name: "examples", packages: []string{"./examples"}, needs: []cluster.Option{cluster.WithTraefik()}},
	{name: "demo", packages: []string{"./demo"}, lacks: netns.NodePossible, demanding: []string{"TestDemoOnNode"}},
	{
		name: "traffic", packages: []string{"./traffic", "./router"}, alone: true,
		needs: []cluster.Option{cluster.WithTraefik(), cluster.WithPrometheus()},
	},
	{name: "hostile", packages: []string{"./hostile"}, alone: true},
	{name: "node", packages: []string{"./node"}, alone: true, needs: node.Options(1), lacks: netns.NodePossible},
}

// scalersOfRoles returns an error where LWS has neither DisaggregatedSetRoleScalers nor slices: v0.10.0 is the first that has them.
func scalersOfRoles() error {
	used, err := cluster.Versions{}.Resolve()
	if err == nil && strings.HasPrefix(used.LWS, "v0.9.") {
		err = fmt.Errorf("LWS %s has neither DisaggregatedSetRoleScalers nor slices", used.LWS)
	}
	return err
}

// parts are subsets of e2e: the tests with this prefix.
var parts = []string{"canary", "partition", "blueGreen", "adopt", "styles", "admission", "autoscaler", "dashboard", "history", "plan", "preflight", "watch"}

// find returns the suites with these names, or every whole suite, and why this machine leaves tests out. A suite that it can't run is left
// out unless it is named.
func find(names []string) (found []suite, leftOut []string, err error) {
	suites, err := named(names)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range suites {
		if s.lacks == nil {
			found = append(found, s)
			continue
		}
		switch err := s.lacks(); {
		case err == nil:
			s.demanding = nil
			found = append(found, s)
		case len(s.demanding) > 0:
			found = append(found, s)
			for _, test := range s.demanding {
				leftOut = append(leftOut, fmt.Sprintf("%s: %s: left out on this machine: %v", s.name, test, err))
			}
		case len(names) > 0:
			found = append(found, s)
		default:
			leftOut = append(leftOut, fmt.Sprintf("%s: left out on this machine: %v", s.name, err))
		}
	}
	return found, leftOut, nil
}

// named returns the suites with these names. Without names it returns every whole suite.
func named(names []string) ([]suite, error) {
	if len(names) == 0 {
		return whole, nil
	}
	var found []suite
	for _, name := range names {
		i := slices.IndexFunc(whole, func(s suite) bool { return s.name == name })
		switch {
		case i >= 0:
			found = append(found, whole[i])
		case slices.Contains(parts, name):
			s := whole[0]
			s.name, s.run = name, "^Test"+strings.ToUpper(name[:1])+name[1:]
			found = append(found, s)
		default:
			return nil, fmt.Errorf("unknown suite %q: want one of %s", name, strings.Join(suiteNames(), ", "))
		}
	}
	return found, nil
}

func suiteNames() []string {
	names := make([]string, 0, len(whole)+len(parts))
	for _, s := range whole {
		names = append(names, s.name)
	}
	return append(names, parts...)
}

// restrict restricts suites to the tests that the table has at a level, and drops suites without any.
func restrict(suites []suite, table []requirement, upTo level) []suite {
	if upTo == levelAll {
		return suites
	}
	var some []suite
	for _, s := range suites {
		names := s.tests(table, upTo)
		if len(names) > 0 {
			s.run = pattern(names)
			some = append(some, s)
		}
	}
	return some
}

// tests returns the tests of the suite's packages that the table has at a level.
func (s suite) tests(table []requirement, upTo level) []string {
	var names []string
	for _, r := range table {
		if r.level > upTo {
			continue
		}
		for _, test := range r.tests {
			if s.has(test) && !slices.Contains(names, test.name) {
				names = append(names, test.name)
			}
		}
	}
	return names
}

// has reports whether a test is one of the suite.
func (s suite) has(test testName) bool {
	function, _, _ := strings.Cut(test.name, "/")
	return slices.ContainsFunc(s.packages, func(p string) bool { return path.Base(p) == test.pkg }) &&
		!slices.Contains(s.apart, function) && (s.only == nil || slices.Contains(s.only, function))
}

// pattern returns a pattern for these tests and their subtests: each element of "TestStyles/canary/promote" as a whole.
func pattern(names []string) string {
	patterns := make([]string, 0, len(names))
	for _, name := range names {
		patterns = append(patterns, "^"+strings.ReplaceAll(name, "/", "$/^")+"$")
	}
	return strings.Join(patterns, "|")
}

// course is a run of suites on given versions.
type course struct {
	versions cluster.Versions
	suites   []string
	level    level
}

// matrix has the versions that are not the default, with smoke tests of the suites that depend on them. All tests have Kruise v0.6.3,
// because the driver is a separate server there, and DisaggregatedSets on LWS v0.10.0, whose controller of them is another one.
var matrix = []course{
	{cluster.Versions{Kubernetes: "v1.37"}, []string{"e2e", "disaggregated"}, levelSmoke},
	{cluster.Versions{Kubernetes: "v1.35", GatewayAPI: "v1.5"}, []string{"e2e", "traffic", "disaggregated"}, levelSmoke},
	{cluster.Versions{Kubernetes: "v1.34", GatewayAPI: "v1.4"}, []string{"e2e", "traffic", "disaggregated"}, levelSmoke},
	{cluster.Versions{LWS: "v0.10.0"}, []string{"e2e", "argo", "batchrelease", "traffic"}, levelSmoke},
	{cluster.Versions{LWS: "v0.10.0"}, []string{"disaggregated"}, levelAll},
	{cluster.Versions{Argo: "v1.10.2"}, []string{"argo"}, levelSmoke},
	{cluster.Versions{Kruise: "v0.6.3"}, []string{"kruise", "batchrelease"}, levelAll},
}
