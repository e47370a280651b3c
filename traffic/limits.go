// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import "fmt"

const (
	// MaxRoutes bounds the routes and Ingresses of a policy together: each is observed and written for itself.
	MaxRoutes = 64
	// MaxHeaderRoutes bounds the header routes of a release, which are kept in an annotation and repeated in each route.
	MaxHeaderRoutes = 16
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
