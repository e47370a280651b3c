// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
)

// IngressPrefix is the prefix of the canary annotations. They are a convention of ingress-nginx, which is retired since
// March 2026; other controllers support them too, for example Higress.
const IngressPrefix = "nginx.ingress.kubernetes.io/"

// The canary annotations. The weight is a percentage unless a total is set.
const (
	canaryMark    = IngressPrefix + "canary"
	canaryWeight  = canaryMark + "-weight"
	canaryTotal   = canaryMark + "-weight-total"
	canaryHeader  = canaryMark + "-by-header"
	canaryValue   = canaryHeader + "-value"
	canaryPattern = canaryHeader + "-pattern"
	canaryCookie  = canaryMark + "-by-cookie"
)

// cookieAlways is the only cookie value that the convention routes to the canary.
const cookieAlways = "always"

// ingressClass is the deprecated annotation for the class of an Ingress. The API server rejects a new Ingress with both the
// annotation and the field.
const ingressClass = "kubernetes.io/ingress.class"

// ingress-nginx silently ignores header names, values and patterns with other characters.
var (
	plainChars   = regexp.MustCompile(`^[-._~:/A-Za-z0-9 ]+$`)
	patternChars = regexp.MustCompile(`^[-._~:/A-Za-z0-9^$\[\](){}*+?|&=\\]+$`)
)

// Supported returns an error if the objects of the policy can't express what is desired. Routes can; an Ingress supports
// weights, one header and one cookie only.
func Supported(p Policy, d Desired) error {
	if len(p.Ingresses) == 0 {
		return nil
	}
	if _, err := shareFor(d); err != nil {
		return unsupported("Ingress %s: %v, or use routes of the Gateway API in place of Ingresses", p.Ingresses[0], err)
	}
	return nil
}

// checkConvention returns why the match can't be expressed with canary annotations.
func (m HeaderMatch) checkConvention() error {
	if m.Cookie && m.Value != cookieAlways {
		return fmt.Errorf("canary annotations match a cookie by name, with the value %q only: give cookie %s that value in place of %q",
			cookieAlways, m.Name, m.Value)
	}
	chars := plainChars
	if m.Regex {
		chars = patternChars
	}
	switch {
	case !plainChars.MatchString(m.Name):
		return fmt.Errorf("header name %q has characters that canary annotations don't support: use letters, digits and -._~:/", m.Name)
	case !chars.MatchString(m.Value):
		return fmt.Errorf("value %q of header %s has characters that canary annotations don't support: use letters, digits and -._~:/, in a regular expression also ^$[](){}*+?|&=\\", m.Value, m.Name)
	}
	return nil
}

// annotations returns those that route matching requests to the canary. The convention searches a pattern anywhere in the
// value; anchors make it match the whole value.
func (m HeaderMatch) annotations() map[string]string {
	switch {
	case m.Cookie:
		return map[string]string{canaryCookie: m.Name}
	case m.Regex:
		return map[string]string{canaryHeader: m.Name, canaryPattern: "^(?:" + m.Value + ")$"}
	}
	return map[string]string{canaryHeader: m.Name, canaryValue: m.Value}
}

// isConvention reports whether an annotation belongs to the convention, including those that this package does not set.
func isConvention(key string) bool {
	return key == canaryMark || strings.HasPrefix(key, canaryMark+"-")
}

// ingressShare is the share of requests that canary annotations express.
type ingressShare struct {
	weight int
	header map[string]string // annotations of a header route and a cookie route
}

func (i ingressShare) none() bool { return i.weight == 0 && len(i.header) == 0 }

func (i ingressShare) annotations() map[string]string {
	out := map[string]string{canaryMark: "true", canaryWeight: strconv.Itoa(i.weight)}
	maps.Copy(out, i.header)
	return out
}

// shareOf parses annotations. A weight that is not a number means no share, as in controllers.
func shareOf(annotations map[string]string) ingressShare {
	out := ingressShare{header: map[string]string{}}
	weight, err := strconv.Atoi(annotations[canaryWeight])
	total, bad := strconv.Atoi(annotations[canaryTotal])
	if bad != nil || total <= 0 {
		total = 100
	}
	if err == nil && weight > 0 {
		out.weight = min(100, (100*weight+total-1)/total)
	}
	for _, k := range []string{canaryHeader, canaryValue, canaryPattern, canaryCookie} {
		if v, ok := annotations[k]; ok {
			out.header[k] = v
		}
	}
	return out
}

// shareFor returns the desired share as annotations. What they can't express is left out and returned as an error.
func shareFor(d Desired) (ingressShare, error) {
	share := ingressShare{weight: d.Weight, header: map[string]string{}}
	headers, err := d.headers()
	named := map[bool]string{} // route names, by whether the route matches a cookie
	for i, route := range d.HeaderRoutes {
		byCookie := len(route.Matches) == 1 && route.Matches[0].Cookie
		if other, ok := named[byCookie]; ok {
			kind := map[bool]string{false: "a header", true: "a cookie"}[byCookie]
			return ingressShare{weight: d.Weight}, fmt.Errorf("canary annotations support one route by %s, not both %s and %s: remove one of the two header routes first",
				kind, other, d.HeaderRoutes[i].Name)
		}
		named[byCookie] = route.Name
	}
	for _, header := range headers {
		maps.Copy(share.header, header)
	}
	if d.Mirror > 0 {
		return share, errors.New("canary annotations can't mirror requests to the canary: remove the mirror")
	}
	return share, err
}

// headers returns the annotations of each header route that the convention can express, and an error for the last one that
// it can't.
func (d Desired) headers() (out []map[string]string, err error) {
	for _, route := range d.HeaderRoutes {
		if len(route.Matches) != 1 {
			err = fmt.Errorf("canary annotations match one header, but header route %s has %d: match a single header", route.Name, len(route.Matches))
			continue
		}
		m := route.Matches[0]
		if bad := m.checkConvention(); bad != nil {
			err = fmt.Errorf("header route %s: %w", route.Name, bad)
			continue
		}
		out = append(out, m.annotations())
	}
	return out, err
}

// shareWithin returns the desired share, limited to what the canary has.
func shareWithin(d Desired, have ingressShare) ingressShare {
	share := ingressShare{weight: min(d.Weight, have.weight), header: map[string]string{}}
	headers, _ := d.headers()
	for _, header := range headers {
		if maps.Equal(header, have.by(header[canaryCookie] != "")) {
			maps.Copy(share.header, header)
		}
	}
	return share
}

// by returns the annotations of the header route, or of the cookie route.
func (i ingressShare) by(cookie bool) map[string]string {
	out := maps.Clone(i.header)
	maps.DeleteFunc(out, func(k, _ string) bool { return (k == canaryCookie) != cookie })
	return out
}
