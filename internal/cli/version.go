// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import "runtime/debug"

// version is the module's version as the Go command recorded it: a tag with `go install …@v1.2.3`, a pseudo-version
// in a checkout, "(devel)" where it recorded none.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
