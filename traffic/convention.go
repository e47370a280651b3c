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
)

// ingressClass is how Ingresses named their class before they had a field for it. The API refuses both in a new one.
const ingressClass = "kubernetes.io/ingress.class"

// ingress-nginx ignores header names, values and patterns with other characters, and does not say so.
var (
	plainChars   = regexp.MustCompile(`^[-._~:/A-Za-z0-9 ]+$`)
	patternChars = regexp.MustCompile(`^[-._~:/A-Za-z0-9^$\[\](){}*+?|&=\\]+$`)
)

// Supported says whether the objects of the policy can express what is desired. Routes can; an Ingress knows weights and
// one header only.
func Supported(s Setup, d Desired) error {
	if len(s.Policy.Ingresses) == 0 {
		return nil
	}
	if _, err := shareFor(d); err != nil {
		return unsupported("Ingress %s: %v, or use routes of the Gateway API in place of Ingresses", s.Policy.Ingresses[0], err)
	}
	return nil
}

func (m HeaderMatch) conventional() error {
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
	if m.Regex {
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
	header map[string]string // annotations, empty without a header route
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
	for _, k := range []string{canaryHeader, canaryValue, canaryPattern} {
		if v, ok := annotations[k]; ok {
			out.header[k] = v
		}
	}
	return out
}

// shareFor is what is desired, in terms of the convention. What it can't express is left out, and is an error.
func shareFor(d Desired) (ingressShare, error) {
	share := ingressShare{weight: d.Weight}
	headers, err := d.headers()
	if len(headers) == 1 {
		share.header = headers[0]
	}
	switch {
	case d.Mirror > 0:
		return share, errors.New("canary annotations can't copy requests to the canary: leave the mirror out")
	case len(d.HeaderRoutes) > 1:
		return share, fmt.Errorf("canary annotations hold one header route, not %d: remove header route %s first", len(d.HeaderRoutes), d.HeaderRoutes[0].Name)
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
	headers, _ := d.headers()
	for _, header := range headers {
		if maps.Equal(header, have.header) {
			share.header = header
		}
	}
	return share
}
