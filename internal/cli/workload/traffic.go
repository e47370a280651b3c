// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// trafficFlags are the flags of a TrafficPolicy, and of weights, headers and cookies, which the host requests.
type trafficFlags struct {
	flags *pflag.FlagSet

	service          string
	httpRoutes       []string
	weights          []string
	headers, cookies []string
}

func (f *trafficFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.flags = flags
	flags.StringVar(&f.service, "service", "",
		"Service that selects the stable leaders; with a route, the release splits its requests")
	flags.StringSliceVar(&f.httpRoutes, "http-route", nil, "HTTPRoute whose rules lead to the Service; may be repeated")
	flags.StringSliceVar(&f.weights, "weights", nil,
		"percentage of requests for the canary with each batch: 10,50,100 (default: its share of groups, rounded up)")
	flags.StringSliceVar(&f.headers, "canary-header", nil,
		"NAME=VALUE of a header that sends requests to the canary; may be repeated")
	flags.StringSliceVar(&f.cookies, "canary-cookie", nil,
		"NAME or NAME=VALUE (default: always) of a cookie that sends requests to the canary; may be repeated")
	for _, flag := range []string{"service", "http-route", "weights", "canary-header", "canary-cookie"} {
		completeFlag(cmd, flag)
	}
}

// set sets the policy's fields of the flags. The driver validates them.
func (f *trafficFlags) set(policy *pb.ReleasePolicy) error {
	if f.service == "" && len(f.httpRoutes) == 0 {
		return nil
	}
	policy.Traffic = cmp.Or(policy.GetTraffic(), &pb.TrafficPolicy{})
	t := policy.GetTraffic()
	t.StableService = cmp.Or(f.service, t.GetStableService())
	if len(f.httpRoutes) > 0 {
		t.HttpRoutes = f.httpRoutes
	}
	if t.GetStableService() == "" {
		return exit.Usagef("--http-route: no Service selects the stable leaders: give --service, or stable_service in the policy file")
	}
	return nil
}

// parseWeights parses --weights: one percentage per batch, with or without a percent sign.
func (f *trafficFlags) parseWeights(policy *pb.ReleasePolicy) ([]int32, error) {
	if len(f.weights) == 0 {
		return nil, nil
	}
	text, batches := strings.Join(f.weights, ","), policy.GetBatches()
	if policy.GetTraffic() == nil {
		return nil, exit.Usagef("--weights %s: this release does not split requests: give --service and a route, "+
			"for example --http-route, or leave out --weights", text)
	}
	if len(f.weights) != len(batches) {
		return nil, exit.Usagef("--weights %s: want one for each of the %d batches (%s), got %d",
			text, len(batches), strings.Join(batches, ","), len(f.weights))
	}
	weights := make([]int32, 0, len(f.weights))
	for _, w := range f.weights {
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(w), "%"), 10, 31)
		if err != nil || n > 100 {
			return nil, exit.Usagef("--weights %s: %q is not a whole percentage from 0 to 100; want for example 10,50,100", text, w)
		}
		weights = append(weights, int32(n))
	}
	return weights, nil
}

// cookieAlways is the default value of a cookie.
const cookieAlways = "always"

// byHeader reports whether the release routes requests by header or cookie.
func (f *trafficFlags) byHeader() bool { return len(f.headers)+len(f.cookies) > 0 }

// headerRoutes parses --canary-header and --canary-cookie, each of which is a route.
func (f *trafficFlags) headerRoutes(policy *pb.ReleasePolicy) ([]host.HeaderRoute, error) {
	if f.byHeader() && policy.GetTraffic() == nil {
		return nil, exit.Usagef("--canary-header and --canary-cookie: this release does not split requests: give --service " +
			"and a route, for example --http-route, or leave them out")
	}
	var routes []host.HeaderRoute
	for i, text := range f.headers {
		name, value, _ := strings.Cut(text, "=")
		if name == "" || value == "" {
			return nil, exit.Usagef("--canary-header %q: want a name and a value, for example x-canary=yes", text)
		}
		// The names are the same when the command is repeated, so that it changes nothing.
		routes = append(routes, host.HeaderRoute{
			Name: fmt.Sprintf("header-%d", i+1), Match: &pb.HeaderMatch{Name: name, Value: &pb.HeaderMatch_Exact{Exact: value}},
		})
	}
	for i, text := range f.cookies {
		name, value, given := strings.Cut(text, "=")
		if !given {
			value = cookieAlways
		}
		if name == "" || value == "" {
			return nil, exit.Usagef("--canary-cookie %q: want a name, or a name and a value, for example tester=always", text)
		}
		routes = append(routes, host.HeaderRoute{
			Name: fmt.Sprintf("cookie-%d", i+1), Match: &pb.HeaderMatch{Name: name, Value: &pb.HeaderMatch_Cookie{Cookie: value}},
		})
	}
	return routes, nil
}

// gateFlags are the flags of gates. Gates are the host's, and no part of a ReleasePolicy, but stand in its file.
type gateFlags struct {
	templates  []string
	onFailure  host.OnFailure
	prometheus string
	config     string
}

func (f *gateFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.templates, "gate", nil,
		"gate to pass after each batch: a template such as vllm-ttft, or TEMPLATE=MAX; may be repeated")
	output.AddChoice(cmd, &f.onFailure, "on-gate-failure", "", "what to do when a gate fails: rollback or pause", host.OnFailureRollback, host.OnFailurePause)
	flags.StringVar(&f.prometheus, "prometheus", "", "URL of the Prometheus that measures the gates")
	flags.StringVar(&f.config, "prometheus-config", "",
		"YAML file with credentials and TLS for --prometheus, as promtool's --http.config.file")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("gate", completeTemplates))
	completeFlag(cmd, "prometheus")
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
		// Prometheus without gates is a mistake that a release would hide.
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

// completeTemplates completes the name of a template.
func completeTemplates(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	templates := gate.Templates()
	names := make([]cobra.Completion, 0, len(templates))
	for _, g := range templates {
		names = append(names, cobra.CompletionWithDesc(g.Name, g.About))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
