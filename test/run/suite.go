// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// suite is a set of tests that run together on one control plane.
type suite struct {
	name     string
	packages []string
	// run is a pattern for the names of tests; "" means all.
	run string
	// needs are the parts of the cluster beyond Kubernetes, LWS and KWOK.
	needs []cluster.Option
}

// whole are the suites that together have every end-to-end test. The longest come first.
var whole = []suite{
	{name: "e2e", packages: []string{"./test/e2e"}},
	{name: "traffic", packages: []string{"./test/traffic", "./traffic/router"}, needs: []cluster.Option{cluster.WithTraefik()}},
	{name: "argo", packages: []string{"./test/argo"}, needs: []cluster.Option{cluster.WithTraefik(), cluster.WithArgo()}},
	{name: "kruise", packages: []string{"./test/kruise"}, needs: []cluster.Option{cluster.WithGatewayAPI(), cluster.WithKruise()}},
	{name: "batchrelease", packages: []string{"./test/batchrelease"}},
	{name: "cluster", packages: []string{"./test/cluster", "./test/netns"}, needs: []cluster.Option{cluster.WithTraefik()}},
	{name: "examples", packages: []string{"./examples"}},
	{name: "demo", packages: []string{"./test/demo"}},
}

// parts are suites that are a part of e2e: the tests whose names begin like them.
var parts = []string{"canary", "partition", "blueGreen", "adopt", "styles", "admission", "autoscaler", "history", "plan", "preflight", "watch"}

// find returns the suites with these names; every whole suite for none.
func find(names []string) ([]suite, error) {
	if len(names) == 0 {
		return whole, nil
	}
	found := make([]suite, 0, len(names))
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
			return nil, fmt.Errorf("there is no suite %q; there are %s", name, strings.Join(suiteNames(), ", "))
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

// restrict returns the suites with only those tests that the table has at a level, without the suites that have none.
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
			if slices.ContainsFunc(s.packages, func(p string) bool { return path.Base(p) == test.pkg }) && !slices.Contains(names, test.name) {
				names = append(names, test.name)
			}
		}
	}
	return names
}

// pattern matches these tests and their subtests: each element of "TestStyles/canary/promote" as a whole.
func pattern(names []string) string {
	patterns := make([]string, 0, len(names))
	for _, name := range names {
		patterns = append(patterns, "^"+strings.ReplaceAll(name, "/", "$/^")+"$")
	}
	return strings.Join(patterns, "|")
}

// course is one run of suites on chosen versions.
type course struct {
	versions cluster.Versions
	suites   []string
	level    level
}

// matrix are the courses on versions that are not the default: a smoke course where the version can make a difference. Kruise
// runs whole, because with v0.6.3 the driver is a server of its own.
var matrix = []course{
	{cluster.Versions{Kubernetes: "v1.35", GatewayAPI: "v1.5"}, []string{"e2e", "traffic"}, levelSmoke},
	{cluster.Versions{Kubernetes: "v1.34", GatewayAPI: "v1.4"}, []string{"e2e", "traffic"}, levelSmoke},
	{cluster.Versions{LWS: "v0.10.0"}, []string{"e2e", "argo", "batchrelease"}, levelSmoke},
	{cluster.Versions{Argo: "v1.10.2"}, []string{"argo"}, levelSmoke},
	{cluster.Versions{Kruise: "v0.6.3"}, []string{"kruise", "batchrelease"}, levelAll},
}
