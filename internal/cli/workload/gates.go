// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

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
		"gate that must pass after each batch: a template such as vllm-ttft, or TEMPLATE=MAX; may be repeated")
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
		return nil, exit.Usagef("--prometheus: this release has no gates: give --gate, or gates in the policy file")
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

// completeTemplates completes the name of a template.
func completeTemplates(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	templates := gate.Templates()
	names := make([]cobra.Completion, 0, len(templates))
	for _, g := range templates {
		names = append(names, cobra.CompletionWithDesc(g.Name, g.About))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
