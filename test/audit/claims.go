// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Right is one verb on a resource with its group, as in "patch" and "leaderworkersets/finalizers.leaderworkerset.x-k8s.io".
type Right struct{ Verb, Resource string }

// String returns verb and resource, as in "patch pods".
func (r Right) String() string { return r.Verb + " " + r.Resource }

// RightOf returns the right that a role needs for a resource of an API group, which is empty for the core group.
func RightOf(verb, group, resource string) Right {
	if group != "" {
		resource += "." + group
	}
	return Right{verb, resource}
}

// Right returns the right that the request needs, and false for a request without a resource, such as discovery.
func (e Event) Right() (Right, bool) {
	if e.ObjectRef.Resource == "" {
		return Right{}, false
	}
	return RightOf(e.Verb, e.ObjectRef.APIGroup, e.Resource()), true
}

// claim matches a row of the table: role, resource and verbs.
var claim = regexp.MustCompile("(?m)^\\| `([a-z:-]+)` \\| `([a-z0-9./-]+)` \\| ([a-z, ]+) \\|")

// Claims returns the rights of each role in the table of a Markdown file, docs/security.md. It fails if there are none.
func Claims(path string) (map[string]map[Right]bool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read claimed rights: %w", err)
	}
	claims := map[string]map[Right]bool{}
	for _, row := range claim.FindAllStringSubmatch(string(text), -1) {
		if claims[row[1]] == nil {
			claims[row[1]] = map[Right]bool{}
		}
		for verb := range strings.SplitSeq(row[3], ", ") {
			claims[row[1]][Right{verb, row[2]}] = true
		}
	}
	if len(claims) == 0 {
		return nil, fmt.Errorf("%s has no table of rights", path)
	}
	return claims, nil
}
