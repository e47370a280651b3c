// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/internal/sarif"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight/manifests"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const preflightAbout = `Say what of a workload, and of what is around it, will hurt when it is released, before it does: probes, preStop hooks, grace
periods, maxUnavailable, disruption budgets, quotas, nodes, queues, volumes, Services. Each finding names the object and the
field, why it hurts and what to do. It changes nothing.

The flags of the release that is to come say which style and batches; without any, it is about LeaderWorkerSet's own rolling
update. With -f no cluster is asked: the files are all that there is, and what they have none of counts as not looked at.`

const preflightExample = `  lockstep preflight vllm --batches 25%,50%,100%
  lockstep preflight vllm --style blue-green --service vllm-leader --http-route vllm --longest-request 10m
  lockstep preflight -f manifests.yaml --batches 50%,100% --fail-on warning
  kustomize build . | lockstep preflight -f - -o sarif > preflight.sarif`

// formatSARIF is what code hosts and editors show beside the lines. Only preflight has one.
const formatSARIF view.Format = "sarif"

// preflightFlags are the flags of `lockstep preflight`.
type preflightFlags struct {
	session.Flags

	policy policyFlags
	// about are the names of the flags of a policy.
	about                       []string
	files                       []string
	longestRequest, propagation time.Duration
	topology                    []string
	skipNodes                   bool
	failOn                      string
}

// newPreflightCommand makes lockstep preflight.
func newPreflightCommand(o *connect.Options) *cobra.Command {
	f := preflightFlags{Flags: session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}}
	cmd := &cobra.Command{
		Use:               "preflight [NAME]",
		Short:             "Say what will hurt when a workload is released, before it does",
		Long:              preflightAbout,
		Example:           preflightExample,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.preflight(cmd, o, args) },
	}
	f.policy.add(cmd)
	f.about = flagNames(cmd)
	flags := cmd.Flags()
	flags.StringSliceVarP(&f.files, "filename", "f", nil, "look at these YAML or JSON files, and at no cluster; - for stdin; may be repeated")
	flags.DurationVar(&f.longestRequest, "longest-request", 0, "how long the longest request takes (default: not known)")
	flags.DurationVar(&f.propagation, "endpoint-propagation", preflight.DefaultPropagation,
		"how long it takes until nobody sends requests to a pod that is being deleted any more")
	flags.StringSliceVar(&f.topology, "topology", nil,
		"node label over whose values the leaders are to be spread, such as topology.kubernetes.io/zone; may be repeated")
	flags.BoolVar(&f.skipNodes, "skip-nodes", false, "don't list nodes and the pods on them, all over the cluster")
	flags.StringVar(&f.failOn, "fail-on", "error", "exit with 5 if anything is found that is at least so grave: note, warning or error; or never")
	complete(cmd, "fail-on", "note", "warning", "error", "never")
	f.Dial.Add(flags)
	f.Output.Add(cmd, formatSARIF)
	return cmd
}

// severities are what --fail-on may say; a finding of at least that severity fails.
var severities = map[string]pb.Severity{
	"note": pb.Severity_SEVERITY_INFO, "warning": pb.Severity_SEVERITY_WARNING, "error": pb.Severity_SEVERITY_ERROR, "never": 1 << 30,
}

func (f *preflightFlags) preflight(cmd *cobra.Command, o *connect.Options, args []string) error {
	if err := f.Output.Check(); err != nil {
		return err
	}
	if _, known := severities[f.failOn]; !known {
		return exit.Usagef("--fail-on %q: want note, warning, error or never", f.failOn)
	}
	if f.longestRequest < 0 || f.propagation < 0 {
		return exit.Usagef("--longest-request and --endpoint-propagation: want 0 or more")
	}
	policy, err := f.released(cmd)
	if err != nil {
		return err
	}
	if len(f.files) > 0 {
		return f.inFiles(o, args, policy)
	}
	if err := session.OneName(cmd, args); err != nil {
		return err
	}
	return f.Run(cmd, o, args[0], func(s *session.Session) error { return f.ask(o, s, policy) })
}

// released is the policy of the release that is to come. Nil: no flag says anything about one.
func (f *preflightFlags) released(cmd *cobra.Command) (*pb.ReleasePolicy, error) {
	given := slices.ContainsFunc(f.about, cmd.Flags().Changed)
	if !given {
		return nil, nil //nolint:nilnil // without a policy it is about the workload's own rolling update
	}
	if f.policy.file == "" && len(f.policy.batches) == 0 {
		f.policy.batches = []string{"100%"} // whatever the batches, this is the most that comes on top
	}
	return f.policy.policy()
}

// ask asks a driver.
func (f *preflightFlags) ask(o *connect.Options, s *session.Session, policy *pb.ReleasePolicy) error {
	request := &pb.PreflightRequest{Workload: s.Ref, Policy: policy, SkipNodes: f.skipNodes, Expectations: &pb.PreflightExpectations{
		LongestRequest: durationpb.New(f.longestRequest), EndpointPropagation: durationpb.New(f.propagation), TopologyKeys: f.topology,
	}}
	r, err := session.Call(s, "look at", s.Preflight, request)
	if err != nil {
		return err
	}
	return f.show(o, []checked{{s.Name, r}}, nil)
}

// inFiles needs no cluster. At most one name chooses among several LeaderWorkerSets; without it all are looked at.
func (f *preflightFlags) inFiles(o *connect.Options, args []string, policy *pb.ReleasePolicy) error {
	if len(args) > 1 {
		return exit.Usagef("want the name of one LeaderWorkerSet at most, got %q", args)
	}
	set, err := readManifests(o, f.files...)
	if err != nil {
		return err
	}
	workloads, err := set.Workloads()
	if err != nil {
		return exit.Usagef("%w", err)
	}
	var parsed record.Policy
	if policy != nil {
		var bad []record.Violation
		if parsed, bad = record.ParsePolicy(policy); len(bad) > 0 {
			return exit.Usagef("%s: %s", bad[0].Field, bad[0].Description)
		}
	}
	var all []checked
	for _, w := range workloads {
		if len(args) == 1 && w.Name != args[0] {
			continue
		}
		snapshot, err := set.Inventory(w)
		if err != nil {
			return exit.Usagef("%w", err)
		}
		snapshot.Policy, snapshot.Force = parsed, policy.GetBlueGreen().GetForce()
		snapshot.Expect = preflight.Expectations{LongestRequest: f.longestRequest, EndpointPropagation: f.propagation, TopologyKeys: f.topology}
		if f.longestRequest == 0 {
			snapshot.Unseen[preflight.LongestRequests] = preflight.LongestRequestUnknown
		}
		all = append(all, checked{w.Namespace + "/" + w.Name, preflight.Check(snapshot)})
	}
	if len(all) == 0 {
		return exit.Usagef("%s: no LeaderWorkerSet %s", strings.Join(f.files, ", "), strings.Join(args, ""))
	}
	return f.show(o, all, set)
}

// checked is a workload and what was found about it.
type checked struct {
	name string
	*pb.PreflightResponse
}

// show writes the findings as they are wanted, and fails if there are some that are too grave. set are the files that they
// are about, nil for a cluster.
func (f *preflightFlags) show(o *connect.Options, all []checked, set *manifests.Set) error {
	var err error
	switch f.Output.Format {
	case formatSARIF:
		err = f.showSARIF(o, all, set)
	case "":
		for _, c := range all {
			if _, err = fmt.Fprint(o.Stdout, view.Preflight(c.name, c.PreflightResponse, spot(set))); err != nil {
				break
			}
		}
	default:
		for _, c := range all {
			if f.Output.Format == view.FormatYAML && len(all) > 1 {
				_, _ = fmt.Fprintln(o.Stdout, "---")
			}
			if err = output.WriteMessage(o.Stdout, c.PreflightResponse, f.Output.Format); err != nil {
				break
			}
		}
	}
	if err != nil {
		return fmt.Errorf("write the findings: %w", err)
	}
	return f.verdict(all)
}

func (f *preflightFlags) showSARIF(o *connect.Options, all []checked, set *manifests.Set) error {
	whole := &pb.PreflightResponse{}
	for _, c := range all {
		whole.Findings = append(whole.Findings, c.GetFindings()...)
		whole.Unchecked = append(whole.Unchecked, c.GetUnchecked()...)
	}
	var locate sarif.Locate
	if set != nil {
		locate = set.Locate
	}
	text, err := sarif.Preflight(o.Version, whole, locate)
	if err == nil {
		_, err = o.Stdout.Write(text)
	}
	return err //nolint:wrapcheck // the caller says what it was
}

// spot says where a field is in files.
func spot(set *manifests.Set) func(*pb.ObjectRef, string) string {
	if set == nil {
		return nil
	}
	return func(ref *pb.ObjectRef, field string) string {
		file, line := set.Locate(ref, field)
		if file == "" {
			return ""
		}
		return fmt.Sprintf("%s:%d", file, line)
	}
}

// verdict is the error that --fail-on asks for.
func (f *preflightFlags) verdict(all []checked) error {
	n := 0
	for _, c := range all {
		for _, finding := range c.GetFindings() {
			if finding.GetSeverity() >= severities[f.failOn] {
				n++
			}
		}
	}
	if n == 0 {
		return nil
	}
	return exit.Errorf(exit.Found, "%d found that --fail-on %s does not let pass", n, f.failOn)
}

// readManifests reads files into one set.
func readManifests(o *connect.Options, files ...string) (*manifests.Set, error) {
	namespace := o.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	set := manifests.NewSet(namespace)
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

// flagNames are the flags that a command has so far.
func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}
