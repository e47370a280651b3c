// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/compatibility"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// buildVersion is the output of `git describe`, which the Makefile makes the linker set. Empty in other builds.
var buildVersion string

// version returns buildVersion, or else the module's version as the Go command recorded it: a tag with
// `go install …@v1.2.3`, a pseudo-version in a checkout, "(devel)" if it recorded none.
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

func contract() string { return string(pb.File_lockstep_v1alpha1_driver_proto.Package()) }

func newVersionCommand(o *connect.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the program and the contract, and the tested versions of Kubernetes, LWS and the hosts",
		Long: `Print the versions of the program, of Go and of the contract, and those of Kubernetes, LeaderWorkerSet, the hosts and the
Gateway API that Lockstep is tested with, the default of the tests first. It contacts neither a cluster nor a driver.
lockstep --version prints only the program's.`,
		Example: "  lockstep version",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return writeVersions(o) },
	}
}

func writeVersions(o *connect.Options) error {
	w := tabwriter.NewWriter(o.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "lockstep\t%s\nGo\t%s\ncontract\t%s\n\ntested with\n", version(), runtime.Version(), contract())
	for _, c := range compatibility.All() {
		fmt.Fprintf(w, "%s\t%s\n", c.Name, strings.Join(c.Versions, ", "))
	}
	return w.Flush() //nolint:wrapcheck // the caller's own stream
}
