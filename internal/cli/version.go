// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import "runtime/debug"

// buildVersion is set by the linker, see the Makefile: what `git describe` said. Empty: it was built without.
var buildVersion string

// version is what the build was told, or else the module's version as the Go command recorded it: a tag with
// `go install …@v1.2.3`, a pseudo-version in a checkout, "(devel)" where it recorded none.
func version() string {
	if buildVersion != "" {
		return buildVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
