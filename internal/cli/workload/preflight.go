// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight/manifests"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const preflightAbout = `Check a workload and the objects around it for what disrupts requests or blocks a release: probes, preStop hooks, grace
periods, maxUnavailable, disruption budgets, quotas, nodes, queues, volumes, Services, routes. Each finding names the object and the
field, the reason and the fix. It changes nothing.

Give the policy flags of the planned release; the defaults are those of lockstep release. With -f it reads the files only and
needs no cluster. What could not be inspected is listed, with the rules that did not run.`

const preflightExample = `  lockstep preflight vllm --batches 25%,50%,100%
  lockstep preflight vllm --style blue-green --service vllm-leader --http-route vllm --longest-request 10m
  lockstep preflight -f manifests.yaml --batches 50%,100% --fail-on warning
  kustomize build . | lockstep preflight -f - -o json`

type preflightFlags struct {
	session.Flags

	policy                      policyFlags
	files                       []string
	longestRequest, propagation time.Duration
	skipNodes                   bool
	failOn                      string
}

func newPreflightCommand(o *connect.Options) *cobra.Command {
	f := preflightFlags{Flags: session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}, failOn: "error"}
	cmd := &cobra.Command{
		Use:               "preflight [NAME]",
		Short:             "Check a workload for problems before it is released",
		Long:              preflightAbout,
		Example:           preflightExample,
		ValidArgsFunction: session.Names(o),
		RunE:              func(cmd *cobra.Command, args []string) error { return f.preflight(cmd, o, args) },
	}
	f.policy.add(cmd)
	flags := cmd.Flags()
	flags.StringSliceVarP(&f.files, "filename", "f", nil, "check these YAML or JSON files instead of a cluster; - for stdin; may be repeated")
	flags.DurationVar(&f.longestRequest, "longest-request", 0, "duration of the longest request (default: unknown)")
	flags.DurationVar(&f.propagation, "endpoint-propagation", preflight.DefaultPropagation,
		"time until clients stop sending requests to a pod that is being deleted")
	flags.BoolVar(&f.skipNodes, "skip-nodes", false, "do not list the cluster's nodes and their pods")
	output.AddChoice(cmd, &f.failOn, "fail-on", "", "exit with 5 on findings of this severity or above: note, warning or error; or never",
		"note", "warning", "error", "never")
	f.Dial.Add(flags)
	output.AddFormat(cmd, &f.Output)
	return cmd
}

// severities are the values of --fail-on; a finding of that severity or above fails.
var severities = map[string]pb.Severity{
	"note": pb.Severity_SEVERITY_INFO, "warning": pb.Severity_SEVERITY_WARNING, "error": pb.Severity_SEVERITY_ERROR, "never": 1 << 30,
}

func (f *preflightFlags) preflight(cmd *cobra.Command, o *connect.Options, args []string) error {
	if f.longestRequest < 0 || f.propagation < 0 {
		return exit.Usagef("--longest-request and --endpoint-propagation: want 0 or more")
	}
	policy, err := f.policy.policy()
	if err != nil {
		return err
	}
	if len(f.files) > 0 {
		return f.checkFiles(o, args, policy)
	}
	if err := session.OneName(cmd, args); err != nil {
		return err
	}
	return f.Run(cmd, o, args, func(s *session.Session) error { return f.checkWorkload(o, s, policy) })
}

// checkWorkload checks the workload in the cluster.
func (f *preflightFlags) checkWorkload(o *connect.Options, s *session.Session, policy *pb.ReleasePolicy) error {
	request := &pb.PreflightRequest{Workload: s.Ref, Policy: policy, SkipNodes: f.skipNodes, Expectations: &pb.PreflightExpectations{
		LongestRequest: durationpb.New(f.longestRequest), EndpointPropagation: durationpb.New(f.propagation),
		HeaderRoutes: f.policy.traffic.byHeader(),
	}}
	r, err := session.Call(s, "check", s.Preflight, request)
	if err != nil {
		return err
	}
	return f.show(o, []checked{{s.Name, r}})
}

// checkFiles checks files without a cluster: the workload that args name, or else all.
func (f *preflightFlags) checkFiles(o *connect.Options, args []string, policy *pb.ReleasePolicy) error {
	if len(args) > 1 {
		return exit.Usagef("want the name of at most one LeaderWorkerSet, got %q", args)
	}
	set, err := readManifests(o, f.files...)
	if err != nil {
		return err
	}
	inventories, err := set.Inventories(strings.Join(args, ""))
	if err != nil {
		return exit.Usagef("%w", err)
	}
	parsed, violations := record.ParsePolicy(policy)
	if len(violations) > 0 {
		return exit.Usagef("%s: %s", session.Given(violations[0].Field), violations[0].Description)
	}
	var all []checked
	for _, snapshot := range inventories {
		snapshot.Policy, snapshot.Force = parsed, policy.GetBlueGreen().GetForce()
		snapshot.Expect = preflight.Expectations{LongestRequest: f.longestRequest, EndpointPropagation: f.propagation, HeaderRoutes: f.policy.traffic.byHeader()}
		// A rule that needs the duration is reported as unchecked, and not as passed.
		if f.longestRequest == 0 {
			snapshot.Unseen[preflight.LongestRequests] = preflight.LongestRequestUnknown
		}
		all = append(all, checked{snapshot.Workload.Namespace + "/" + snapshot.Workload.Name, preflight.Check(snapshot)})
	}
	if len(all) == 0 {
		return exit.Usagef("%s: no LeaderWorkerSet %s", strings.Join(f.files, ", "), strings.Join(args, ""))
	}
	return f.show(o, all)
}

// checked is a workload with its findings.
type checked struct {
	name string
	*pb.PreflightResponse
}

// show writes the findings, and returns the error of --fail-on.
func (f *preflightFlags) show(o *connect.Options, all []checked) error {
	n := 0
	for _, c := range all {
		var err error
		if f.Output == "" {
			_, err = fmt.Fprint(output.Text(o.Stdout), view.Preflight(c.name, c.PreflightResponse))
		} else {
			err = view.WriteMessage(o.Stdout, c.PreflightResponse, f.Output)
		}
		if err != nil {
			return fmt.Errorf("write the findings: %w", err)
		}
		for _, finding := range c.GetFindings() {
			if finding.GetSeverity() >= severities[f.failOn] {
				n++
			}
		}
	}
	if n == 0 {
		return nil
	}
	return exit.Errorf(exit.Found, "preflight failed: %d found of severity %s or above (--fail-on)", n, f.failOn)
}

func readManifests(o *connect.Options, files ...string) (*manifests.Set, error) {
	// Manifests without a namespace get the one of --namespace, as kubectl applies them.
	set := manifests.NewSet(cmp.Or(o.Namespace, metav1.NamespaceDefault))
	for _, path := range files {
		text, err := readAll(path)
		if err != nil {
			return nil, err
		}
		if path == "-" {
			path = "stdin"
		}
		if err := set.Add(path, text); err != nil {
			return nil, exit.Usagef("%w", err)
		}
	}
	return set, nil
}
