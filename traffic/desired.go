// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Desired is where a release wants its requests to go. The zero value is: as the user had it.
type Desired struct {
	// Weight is the canary's share in percent, 0 to 100.
	Weight int
	// HeaderRoutes send what matches to the canary, whatever the weight.
	HeaderRoutes []HeaderRoute
	// Mirror is the percentage of requests that the canary gets a copy of, 0 to 100. Nothing is copied at weight 100.
	Mirror int
	// Prepared: the canary Service exists. Implied by all above.
	Prepared bool
	// Fenced: the stable Service selects stable leaders only. Implied by all above.
	Fenced bool
}

// complete returns d with what it implies.
func (d Desired) complete() Desired {
	d.Prepared = d.Prepared || d.Weight > 0 || len(d.HeaderRoutes) > 0 || d.Mirror > 0
	d.Fenced = d.Fenced || d.Prepared
	return d
}

func (d Desired) check() error {
	if d.Weight < 0 || d.Weight > 100 || d.Mirror < 0 || d.Mirror > 100 {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "weight %d and mirror %d must be 0 to 100", d.Weight, d.Mirror)
	}
	return nil
}

// HeaderRoute sends requests to the canary that have all its headers.
type HeaderRoute struct {
	// Name is unique within the release: a DNS label.
	Name    string
	Matches []HeaderMatch
}

// HeaderMatch matches one header.
type HeaderMatch struct {
	Name, Value string
	// Regex: Value is an RE2 expression for the whole header value, otherwise the value itself.
	Regex bool
}

// Limits of the Gateway API on header matches.
const (
	maxHeaders     = 16
	maxHeaderName  = 256
	maxHeaderValue = 4096
)

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// ParseHeaderRoute checks what a host asks for. Without matches the route is to be removed.
func ParseHeaderRoute(name string, matches []*pb.HeaderMatch) (HeaderRoute, []drivererr.FieldViolation) {
	var bad []drivererr.FieldViolation
	for _, problem := range validation.IsDNS1123Label(name) {
		bad = append(bad, drivererr.FieldViolation{Field: "name", Description: problem})
	}
	if len(matches) > maxHeaders {
		bad = append(bad, drivererr.FieldViolation{Field: "matches", Description: fmt.Sprintf("has more than %d headers", maxHeaders)})
	}
	route := HeaderRoute{Name: name}
	for i, m := range matches {
		match := HeaderMatch{Name: m.GetName(), Value: m.GetExact()}
		if _, regex := m.GetValue().(*pb.HeaderMatch_Regex); regex {
			match.Value, match.Regex = m.GetRegex(), true
		}
		for _, v := range match.violations() {
			bad = append(bad, drivererr.FieldViolation{Field: fmt.Sprintf("matches[%d].%s", i, v.Field), Description: v.Description})
		}
		if slices.ContainsFunc(route.Matches, func(o HeaderMatch) bool { return strings.EqualFold(o.Name, match.Name) }) {
			bad = append(bad, drivererr.FieldViolation{Field: fmt.Sprintf("matches[%d].name", i), Description: "is named twice"})
		}
		route.Matches = append(route.Matches, match)
	}
	return route, bad
}

func (m HeaderMatch) violations() []drivererr.FieldViolation {
	var bad []drivererr.FieldViolation
	if !headerName.MatchString(m.Name) || len(m.Name) > maxHeaderName {
		bad = append(bad, drivererr.FieldViolation{Field: "name", Description: fmt.Sprintf("%q is no header name", m.Name)})
	}
	field := "exact"
	if m.Regex {
		field = "regex"
		if _, err := regexp.Compile(m.Value); err != nil {
			bad = append(bad, drivererr.FieldViolation{Field: field, Description: err.Error()})
		}
	}
	if m.Value == "" || len(m.Value) > maxHeaderValue {
		bad = append(bad, drivererr.FieldViolation{Field: field, Description: fmt.Sprintf("must have 1 to %d characters", maxHeaderValue)})
	}
	return bad
}
