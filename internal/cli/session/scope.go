// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
)

// Scope are the flags of a command that shows the workloads of a namespace, or of all.
type Scope struct {
	dial connect.Flags
	all  bool
}

// Add registers the flags.
func (f *Scope) Add(flags *pflag.FlagSet) {
	flags.BoolVarP(&f.all, "all-namespaces", "A", false, "all namespaces that the driver serves")
	f.dial.Add(flags)
}

// Namespace returns the namespace, "" for all, or a usage error.
func (f *Scope) Namespace(o *connect.Options) (string, error) {
	if f.all && o.Namespace != "" {
		return "", exit.Usagef("--all-namespaces and --namespace %s exclude each other", o.Namespace)
	}
	if err := f.dial.Check(o); err != nil || f.all {
		return "", err
	}
	return o.WorkloadNamespace()
}

// Connect connects to a driver of a namespace, or of one workload if it has a name. A driver inside this process writes nothing, and logs to logs.
func (f *Scope) Connect(cmd *cobra.Command, o *connect.Options, namespace, name string, logs io.Writer) (*connect.Link, error) {
	inside := o.ForCommand(cmd.Flags(), namespace, name)
	inside.ReadOnly, inside.Silent, inside.Stderr = true, true, logs
	link, err := f.dial.Connect(cmd.Context(), inside)
	if err != nil {
		return nil, Explain(err, "reach the driver", HintsFor(cmd, "NAME"))
	}
	return link, nil
}
