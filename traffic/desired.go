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

// Desired is the desired state of a release's traffic. The zero value is the user's own configuration.
type Desired struct {
	// Weight is the canary's share in percent, 0 to 100.
	Weight int
	// HeaderRoutes route matching requests to the canary, whatever the weight.
	HeaderRoutes []HeaderRoute
	// Mirror is the percentage of requests that are mirrored to the canary, 0 to 100. Nothing is mirrored at weight 100.
	Mirror int
	// Prepared: the canary Service exists. Implied by all above.
	Prepared bool
	// Isolated: the stable Service selects stable leaders only. Implied by all above, unless SplitEnded.
	Isolated bool
	// SplitEnded ends a split in place: the stable Service selects the leaders of both revisions, and no route distinguishes
	// them. It excludes shares, header routes and mirrors. In place, it is the default if nothing is desired.
	SplitEnded bool
	// HandedOver: the canary becomes the workload. The stable Service selects the canary's leaders only; if the user selects
	// by the workload's name, the new name stays when the isolation is removed. It excludes shares, header routes and mirrors,
	// since requests return from the canary's Service to the stable one.
	HandedOver bool
}

// complete returns d with all implied fields set.
func (d Desired) complete(s Setup) Desired {
	d.Prepared = d.Prepared || d.Weight > 0 || len(d.HeaderRoutes) > 0 || d.Mirror > 0
	d.Isolated = !d.SplitEnded && (d.Isolated || d.Prepared)
	d.SplitEnded = d.SplitEnded || s.InPlace() && !d.Isolated && !d.HandedOver
	return d
}

func (d Desired) equal(e Desired) bool {
	return d.Weight == e.Weight && d.Mirror == e.Mirror && d.Prepared == e.Prepared && d.Isolated == e.Isolated && d.SplitEnded == e.SplitEnded &&
		d.HandedOver == e.HandedOver && slices.EqualFunc(d.HeaderRoutes, e.HeaderRoutes, HeaderRoute.equal)
}

func (r HeaderRoute) equal(s HeaderRoute) bool {
	return r.Name == s.Name && slices.Equal(r.Matches, s.Matches)
}

func (d Desired) check() error {
	// The callers keep both within bounds, so a breach is a defect and no error of the user.
	if d.Weight < 0 || d.Weight > 100 || d.Mirror < 0 || d.Mirror > 100 {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "weight %d and mirror %d must be 0 to 100", d.Weight, d.Mirror)
	}
	if (d.SplitEnded || d.HandedOver) && (d.Weight > 0 || d.Mirror > 0 || len(d.HeaderRoutes) > 0) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "a stable Service that selects the canary's leaders can't be combined with a weight, a mirror or header routes")
	}
	return nil
}

// HeaderRoute routes requests that match all its headers to the canary.
type HeaderRoute struct {
	// Name is unique within the release: a DNS label.
	Name    string        `json:"name"`
	Matches []HeaderMatch `json:"matches"`
}

// HeaderMatch matches one header, or one cookie.
type HeaderMatch struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// Regex: Value is an RE2 expression for the whole header value.
	Regex bool `json:"regex,omitempty"`
	// Cookie: Name and Value are those of a cookie.
	Cookie bool `json:"cookie,omitempty"`
}

// header returns the name of the matched header.
func (m HeaderMatch) header() string {
	if m.Cookie {
		return cookieHeader
	}
	return m.Name
}

// asHeader returns an equivalent match without Cookie.
func (m HeaderMatch) asHeader() HeaderMatch {
	if !m.Cookie {
		return m
	}
	pair := regexp.QuoteMeta(m.Name + "=" + m.Value)
	// Anchored, since not every gateway matches an expression against the whole value.
	return HeaderMatch{Name: cookieHeader, Regex: true, Value: "^(?:.*;[ ]?)?" + pair + "(?:;.*)?$"}
}

// cookieHeader contains all cookies of a request: "a=1; b=2".
const cookieHeader = "Cookie"

// Valid names of headers and cookies, and values of cookies.
var (
	headerName  = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	cookieValue = regexp.MustCompile(`^[!#-+\--:<-\[\]-~]+$`)
)

// ParseHeaderRoute validates a header route. Without matches the route is to be removed.
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

// Violations returns what is invalid, with the field names of the SetHeaderRoute request.
func (r HeaderRoute) Violations() []drivererr.FieldViolation {
	bad := &drivererr.Fields{}
	for _, problem := range validation.IsDNS1123Label(r.Name) {
		bad.Add("name", "%s", problem)
	}
	if len(r.Matches) > maxHeaders {
		bad.Add("matches", "has %d headers, more than the %d that are possible: use fewer, or a regular expression", len(r.Matches), maxHeaders)
	}
	for i, match := range r.Matches {
		bad.Path = fmt.Sprintf("matches[%d]", i)
		match.check(bad)
		// Names of headers ignore case, and the Gateway API considers only the first of two matches on one header.
		if slices.ContainsFunc(r.Matches[:i], func(o HeaderMatch) bool { return strings.EqualFold(o.header(), match.header()) }) {
			bad.Add("name", "%s", duplicateMatch(match))
		}
	}
	return bad.List
}

func duplicateMatch(m HeaderMatch) string {
	if m.header() == cookieHeader {
		return "matches the Cookie header again, which holds all cookies: match a single cookie"
	}
	return "is named twice"
}

func (m HeaderMatch) check(bad *drivererr.Fields) {
	if !headerName.MatchString(m.Name) || len(m.Name) > maxHeaderName {
		bad.Add("name", "%q is not a valid header or cookie name", m.Name)
	}
	field := "exact"
	switch {
	case m.Cookie && m.Regex:
		// In a request the two exclude each other. A record that was edited by hand may have both.
		bad.Add("cookie", "can't be a regular expression")
	case m.Cookie:
		field = "cookie"
		if m.Value != "" && !cookieValue.MatchString(m.Value) {
			bad.Add(field, "%q is not a valid cookie value", m.Value)
		}
	case m.Regex:
		field = "regex"
		if _, err := regexp.Compile(m.Value); err != nil {
			bad.Add(field, "%v", err)
		}
	}
	// A cookie is matched by an expression, which has to fit into the Gateway API's limit.
	if m.Value == "" || len(m.asHeader().Value) > maxHeaderValue {
		bad.Add(field, "must have 1 to %d characters", maxHeaderValue)
	}
}

const (
	// MaxRoutes bounds the routes and Ingresses of a policy together: each is observed and written for itself.
	MaxRoutes = 64
	// MaxHeaderRoutes bounds the header routes of a release, which are kept in an annotation and repeated in each route: a route has at
	// most 16 rules, and one of them is the user's.
	MaxHeaderRoutes = 15
	// MaxHeaderBytes bounds their names and values together.
	MaxHeaderBytes = 64 << 10
)

// Limits of the Gateway API on header matches.
const (
	maxHeaders     = 16
	maxHeaderName  = 256
	maxHeaderValue = 4096
)

// Excess returns by what header routes exceed the limits, or "" if they do not.
func Excess(routes []HeaderRoute) string {
	size := 0
	for _, r := range routes {
		size += len(r.Name)
		for _, m := range r.Matches {
			size += len(m.Name) + len(m.Value)
		}
	}
	switch {
	case len(routes) > MaxHeaderRoutes:
		return fmt.Sprintf("a release has %d header routes, more than the %d that are possible: remove one first", len(routes), MaxHeaderRoutes)
	case size > MaxHeaderBytes:
		return fmt.Sprintf("the header routes of a release have %d bytes of names and values, more than the %d that are possible", size, MaxHeaderBytes)
	}
	return ""
}
