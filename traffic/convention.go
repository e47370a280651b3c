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

// IngressPrefix begins the annotations by which an Ingress controller is told that an Ingress is a canary. The convention
// is that of ingress-nginx, which has been retired since March 2026; other controllers honour it too, Higress among them.
const IngressPrefix = "nginx.ingress.kubernetes.io/"

// The annotations of the convention. A weight of all requests is 100 unless a total says otherwise.
const (
	canaryMark    = IngressPrefix + "canary"
	canaryWeight  = canaryMark + "-weight"
	canaryTotal   = canaryMark + "-weight-total"
	canaryHeader  = canaryMark + "-by-header"
	canaryValue   = canaryHeader + "-value"
	canaryPattern = canaryHeader + "-pattern"
	canaryCookie  = canaryMark + "-by-cookie"
)

// cookieAlways is the value of the cookie that the convention sends to the canary; no other can be chosen.
const cookieAlways = "always"

// ingressClass is how Ingresses named their class before they had a field for it. The API refuses both in a new one.
const ingressClass = "kubernetes.io/ingress.class"

// ingress-nginx ignores header names, values and patterns with other characters, and does not say so.
var (
	plainChars   = regexp.MustCompile(`^[-._~:/A-Za-z0-9 ]+$`)
	patternChars = regexp.MustCompile(`^[-._~:/A-Za-z0-9^$\[\](){}*+?|&=\\]+$`)
)

// Supported says whether the objects of the policy can express what is desired. Routes can; an Ingress knows weights,
// one header and one cookie only.
func Supported(p Policy, d Desired) error {
	if len(p.Ingresses) == 0 {
		return nil
	}
	if _, err := shareFor(d); err != nil {
		return unsupported("Ingress %s: %v, or use routes of the Gateway API in place of Ingresses", p.Ingresses[0], err)
	}
	return nil
}

func (m HeaderMatch) conventional() error {
	if m.Cookie && m.Value != cookieAlways {
		return fmt.Errorf("canary annotations choose a cookie by its name, and by the value %q alone: give cookie %s that value in place of %q",
			cookieAlways, m.Name, m.Value)
	}
	chars := plainChars
	if m.Regex {
		chars = patternChars
	}
	switch {
	case !plainChars.MatchString(m.Name):
		return fmt.Errorf("header name %q has characters that canary annotations may not have: letters, digits and -._~:/ are allowed", m.Name)
	case !chars.MatchString(m.Value):
		return fmt.Errorf("value %q of header %s has characters that canary annotations may not have: letters, digits and -._~:/ are allowed, in an expression also ^$[](){}*+?|&=\\", m.Value, m.Name)
	}
	return nil
}

// annotations are those that send the header's requests to the canary. The convention finds a pattern anywhere in the
// value; ours is for the whole of it.
func (m HeaderMatch) annotations() map[string]string {
	switch {
	case m.Cookie:
		return map[string]string{canaryCookie: m.Name}
	case m.Regex:
		return map[string]string{canaryHeader: m.Name, canaryPattern: "^(?:" + m.Value + ")$"}
	}
	return map[string]string{canaryHeader: m.Name, canaryValue: m.Value}
}

// isConvention says whether an annotation belongs to the convention, with those of it that are not ours.
func isConvention(key string) bool {
	return key == canaryMark || strings.HasPrefix(key, canaryMark+"-")
}

// ingressShare is what a canary Ingress asks its controller for.
type ingressShare struct {
	weight int
	header map[string]string // annotations of a header and of a cookie, empty without a header route
}

func (i ingressShare) none() bool { return i.weight == 0 && len(i.header) == 0 }

func (i ingressShare) annotations() map[string]string {
	out := map[string]string{canaryMark: "true", canaryWeight: strconv.Itoa(i.weight)}
	maps.Copy(out, i.header)
	return out
}

// shareOf reads annotations back. What is no number is no share, as controllers have it.
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

// shareFor is what is desired, in terms of the convention. What it can't express is left out, and is an error.
func shareFor(d Desired) (ingressShare, error) {
	share := ingressShare{weight: d.Weight, header: map[string]string{}}
	headers, err := d.headers()
	named := map[bool]string{} // the route by a header, and that by a cookie
	for i, route := range d.HeaderRoutes {
		byCookie := len(route.Matches) == 1 && route.Matches[0].Cookie
		if other, ok := named[byCookie]; ok {
			kind := map[bool]string{false: "a header", true: "a cookie"}[byCookie]
			return ingressShare{weight: d.Weight}, fmt.Errorf("canary annotations hold one route by %s, not %s and %s: remove one of the two header routes first",
				kind, other, d.HeaderRoutes[i].Name)
		}
		named[byCookie] = route.Name
	}
	for _, header := range headers {
		maps.Copy(share.header, header)
	}
	if d.Mirror > 0 {
		return share, errors.New("canary annotations can't copy requests to the canary: leave the mirror out")
	}
	return share, err
}

// headers are the annotations of each header route that the convention can express, and why another can't be.
func (d Desired) headers() (out []map[string]string, err error) {
	for _, route := range d.HeaderRoutes {
		if len(route.Matches) != 1 {
			err = fmt.Errorf("canary annotations match one header, not the %d of header route %s: match a single one", len(route.Matches), route.Name)
			continue
		}
		m := route.Matches[0]
		if bad := m.conventional(); bad != nil {
			err = fmt.Errorf("header route %s: %w", route.Name, bad)
			continue
		}
		out = append(out, m.annotations())
	}
	return out, err
}

// shareWithin is what is desired, but no more than there is.
func shareWithin(d Desired, have ingressShare) ingressShare {
	share := ingressShare{weight: min(d.Weight, have.weight)}
	share.header = map[string]string{}
	headers, _ := d.headers()
	for _, header := range headers {
		if maps.Equal(header, have.by(header[canaryCookie] != "")) {
			maps.Copy(share.header, header)
		}
	}
	return share
}

// by are the annotations of the header, or that of the cookie.
func (i ingressShare) by(cookie bool) map[string]string {
	out := maps.Clone(i.header)
	maps.DeleteFunc(out, func(k, _ string) bool { return (k == canaryCookie) != cookie })
	return out
}
