// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/internal/host"
)

// gateFlags are the flags of gates. Gates are the host's, and no part of a ReleasePolicy, but stand in its file.
type gateFlags struct {
	templates  []string
	onFailure  string
	prometheus string
	config     string
}

func (f *gateFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.templates, "gate", nil,
		"gate that must pass after each batch: a template of lockstep gates, or TEMPLATE=MAX; may be repeated")
	flags.StringVar(&f.onFailure, "on-gate-failure", string(host.OnFailureRollback),
		"what to do when a gate fails: rollback or pause")
	flags.StringVar(&f.prometheus, "prometheus", "", "URL of the Prometheus that measures the gates, for example http://localhost:9090")
	flags.StringVar(&f.config, "prometheus-config", "",
		"YAML file with credentials and TLS for --prometheus, as promtool's --http.config.file")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("gate", completeTemplates))
	complete(cmd, "on-gate-failure", string(host.OnFailureRollback), string(host.OnFailurePause))
	complete(cmd, "prometheus")
}

// gates returns the gates of the policy file and of the flags.
func (f *gateFlags) gates(file []gate.Gate) ([]gate.Gate, error) {
	gates := file
	for _, text := range f.templates {
		name, limit, limited := strings.Cut(text, "=")
		g, err := gate.Template(name)
		if err != nil {
			return nil, exit.Usagef("--gate %s: %w", text, err)
		}
		if limited {
			most, err := strconv.ParseFloat(limit, 64)
			if err != nil {
				return nil, exit.Usagef("--gate %s: %q is not a number; want for example %s=1.5", text, limit, name)
			}
			g.Max = &most
		}
		gates = append(gates, g)
	}
	if err := gate.Check(gates); err != nil {
		return nil, exit.Usagef("%w", err)
	}
	return gates, nil
}

// metrics returns what measures the gates, or nil if there are none.
func (f *gateFlags) metrics(gates []gate.Gate) (host.Metrics, error) {
	switch {
	case len(gates) == 0 && cmp.Or(f.prometheus, f.config) != "":
		return nil, exit.Usagef("--prometheus: this release has no gates: give --gate, or gates in the policy file; see lockstep gates")
	case len(gates) == 0:
		return nil, nil //nolint:nilnil // There is nothing to measure.
	case f.prometheus == "":
		return nil, exit.Usagef("gate %s needs --prometheus, for example --prometheus http://localhost:9090", gates[0].Name)
	}
	p, err := gate.NewPrometheus(f.prometheus, f.config)
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	return p, nil
}

// reaction returns the value of --on-gate-failure.
func (f *gateFlags) reaction() (host.OnFailure, error) {
	switch reaction := host.OnFailure(f.onFailure); reaction {
	case host.OnFailurePause, host.OnFailureRollback:
		return reaction, nil
	default:
		return "", exit.Usagef("--on-gate-failure %q: want rollback or pause", f.onFailure)
	}
}

const gatesAbout = `List the templates of gates, or print one as YAML, for the list "gates" of a policy file. A gate is a query to Prometheus and
a limit for its value: lockstep release measures gates after each batch, and continues only if they pass.`

func newGatesCommand(o *connect.Options) *cobra.Command {
	return &cobra.Command{
		Use:               "gates [TEMPLATE]",
		Short:             "List the gates that lockstep release can measure",
		Long:              gatesAbout,
		Example:           "  lockstep gates\n  lockstep gates vllm-ttft",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeTemplates,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listGates(o)
			}
			g, err := gate.Template(args[0])
			if err != nil {
				return exit.Usagef("%w", err)
			}
			text, err := yaml.Marshal([]gate.Gate{g})
			if err != nil {
				return fmt.Errorf("encode gate: %w", err)
			}
			_, err = fmt.Fprintf(o.Stdout, "%s", text)
			return err
		},
	}
}

// completeTemplates completes the name of a template.
func completeTemplates(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	templates := gate.Templates()
	names := make([]cobra.Completion, 0, len(templates))
	for _, g := range templates {
		names = append(names, cobra.CompletionWithDesc(g.Name, g.About))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func listGates(o *connect.Options) error {
	w := tabwriter.NewWriter(o.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TEMPLATE\tLIMIT\tMEASURES")
	for _, g := range gate.Templates() {
		fmt.Fprintf(w, "%s\t%s\t%s\n", g.Name, g.Limits(), g.About)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("list gates: %w", err)
	}
	return nil
}
