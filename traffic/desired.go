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
	// Fenced: the stable Service selects stable leaders only. Implied by all above, unless Open.
	Fenced bool
	// Open ends a split in place: the stable Service selects the leaders of both revisions, and no route tells them apart.
	// It goes with no share, header route or mirror. Where nothing is desired at all, this is how a split in place ends.
	Unfenced bool
	// Passed: the canary is the workload from now on. The stable Service selects its leaders and no others; where its user
	// selects by the workload's name, that stays so when the fence is lifted. It goes with no share, since requests have come
	// by the canary's Service until now and return to the stable one, header route or mirror.
	HandedOver bool
}

// complete returns d with what it implies.
func (d Desired) complete(s Setup) Desired {
	d.Prepared = d.Prepared || d.Weight > 0 || len(d.HeaderRoutes) > 0 || d.Mirror > 0
	d.Fenced = !d.Unfenced && (d.Fenced || d.Prepared)
	d.Unfenced = d.Unfenced || s.InPlace() && !d.Fenced && !d.HandedOver
	return d
}

func (d Desired) check() error {
	if d.Weight < 0 || d.Weight > 100 || d.Mirror < 0 || d.Mirror > 100 {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "weight %d and mirror %d must be 0 to 100", d.Weight, d.Mirror)
	}
	if (d.Unfenced || d.HandedOver) && (d.Weight > 0 || d.Mirror > 0 || len(d.HeaderRoutes) > 0) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "a Service that leads to both sides, or to the canary, can't be shared by weight")
	}
	return nil
}

// HeaderRoute sends requests to the canary that have all its headers.
type HeaderRoute struct {
	// Name is unique within the release: a DNS label.
	Name    string
	Matches []HeaderMatch
}

// HeaderMatch matches one header, or one cookie.
type HeaderMatch struct {
	Name, Value string
	// Regex: Value is an RE2 expression for the whole header value, otherwise the value itself.
	Regex bool
	// Cookie: Name and Value are those of a cookie.
	Cookie bool
}

// header is the name of the header that is matched.
func (m HeaderMatch) header() string {
	if m.Cookie {
		return cookieHeader
	}
	return m.Name
}

// asHeader is the match of the header that comes to the same.
func (m HeaderMatch) asHeader() HeaderMatch {
	if !m.Cookie {
		return m
	}
	pair := regexp.QuoteMeta(m.Name + "=" + m.Value)
	// Anchored, since not every gateway takes an expression for one of the whole value.
	return HeaderMatch{Name: cookieHeader, Regex: true, Value: "^(?:.*;[ ]?)?" + pair + "(?:;.*)?$"}
}

// cookieHeader has all cookies of a request: "a=1; b=2".
const cookieHeader = "Cookie"

// Limits of the Gateway API on header matches.
const (
	maxHeaders     = 16
	maxHeaderName  = 256
	maxHeaderValue = 4096
)

// The names of headers and cookies, and the values of cookies.
var (
	headerName  = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	cookieValue = regexp.MustCompile(`^[!#-+\--:<-\[\]-~]+$`)
)

// ParseHeaderRoute checks what a host asks for. Without matches the route is to be removed.
func ParseHeaderRoute(name string, matches []*pb.HeaderMatch) (HeaderRoute, []drivererr.FieldViolation) {
	route := HeaderRoute{Name: name}
	for _, m := range matches {
		match := HeaderMatch{Name: m.GetName(), Value: m.GetExact()}
		switch m.GetValue().(type) {
		case *pb.HeaderMatch_Regex:
			match.Value, match.Regex = m.GetRegex(), true
		case *pb.HeaderMatch_Cookie:
			match.Value, match.Cookie = m.GetCookie(), true
		}
		route.Matches = append(route.Matches, match)
	}
	return route, route.Violations()
}

// Violations are what is wrong with a route, by the names of SetHeaderRoute's fields.
func (r HeaderRoute) Violations() []drivererr.FieldViolation {
	var bad []drivererr.FieldViolation
	for _, problem := range validation.IsDNS1123Label(r.Name) {
		bad = append(bad, drivererr.FieldViolation{Field: "name", Description: problem})
	}
	if len(r.Matches) > maxHeaders {
		bad = append(bad, drivererr.FieldViolation{Field: "matches", Description: fmt.Sprintf("has more than %d headers", maxHeaders)})
	}
	for i, match := range r.Matches {
		for _, v := range match.violations() {
			bad = append(bad, drivererr.FieldViolation{Field: fmt.Sprintf("matches[%d].%s", i, v.Field), Description: v.Description})
		}
		if slices.ContainsFunc(r.Matches[:i], func(o HeaderMatch) bool { return strings.EqualFold(o.header(), match.header()) }) {
			bad = append(bad, drivererr.FieldViolation{Field: fmt.Sprintf("matches[%d].name", i), Description: twice(match)})
		}
	}
	return bad
}

func twice(m HeaderMatch) string {
	if m.header() == cookieHeader {
		return "all cookies are in one header, which can be matched once: name one cookie"
	}
	return "is named twice"
}

func (m HeaderMatch) violations() []drivererr.FieldViolation {
	var bad []drivererr.FieldViolation
	if !headerName.MatchString(m.Name) || len(m.Name) > maxHeaderName {
		bad = append(bad, drivererr.FieldViolation{Field: "name", Description: fmt.Sprintf("%q is no name of a header or cookie", m.Name)})
	}
	field := "exact"
	switch {
	case m.Cookie && m.Regex:
		bad = append(bad, drivererr.FieldViolation{Field: "cookie", Description: "can't be an expression"})
	case m.Cookie:
		field = "cookie"
		if m.Value != "" && !cookieValue.MatchString(m.Value) {
			bad = append(bad, drivererr.FieldViolation{Field: field, Description: fmt.Sprintf("%q is no value of a cookie", m.Value)})
		}
	case m.Regex:
		field = "regex"
		if _, err := regexp.Compile(m.Value); err != nil {
			bad = append(bad, drivererr.FieldViolation{Field: field, Description: err.Error()})
		}
	}
	if m.Value == "" || len(m.asHeader().Value) > maxHeaderValue {
		bad = append(bad, drivererr.FieldViolation{Field: field, Description: fmt.Sprintf("must have 1 to %d characters", maxHeaderValue)})
	}
	return bad
}
