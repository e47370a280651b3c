// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight/manifests"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// manifestFlags are the input of a plan without a cluster.
type manifestFlags struct {
	file, from               string
	replicas                 int
	maxUnavailable, maxSurge string
}

func (f *manifestFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "filename", "f", "", "plan the LeaderWorkerSet in this YAML or JSON file, without a cluster; - for stdin")
	flags.StringVar(&f.from, "from", "", "with --filename: file with the LeaderWorkerSet as it runs now (default: the same, with another template)")
	flags.IntVar(&f.replicas, "replicas", -1, "without NAME: number of groups (default: the file's)")
	flags.Lookup("replicas").DefValue = "0" // The help shows no -1.
	flags.StringVar(&f.maxUnavailable, "max-unavailable", "", "without NAME: the user's own maxUnavailable (default: the file's, or 1)")
	flags.StringVar(&f.maxSurge, "max-surge", "", "without NAME: the user's own maxSurge (default: the file's, or 0)")
}

// given reports whether the plan is without a cluster.
func (f *manifestFlags) given() bool {
	return f.file != "" || f.from != "" || f.replicas >= 0 || f.maxUnavailable != "" || f.maxSurge != ""
}

// manifest is the result of read.
type manifest struct {
	name     string
	input    simulate.Input
	warnings []*pb.Warning
	// snapshot is the preflight input. Nil: there is no file.
	inventory *preflight.Inventory
}

// read reads the files and applies the flags. args is empty, or has the name of one of several LeaderWorkerSets.
func (f *manifestFlags) read(o *connect.Options, args []string) (manifest, error) {
	if len(args) > 1 {
		return manifest{}, exit.Usagef("want the name of at most one LeaderWorkerSet, got %q", args)
	}
	name := strings.Join(args, "")
	if f.file == "" && (f.from != "" || f.replicas < 0) {
		return manifest{}, exit.Usagef("--from, --max-unavailable and --max-surge need --filename, or --replicas alone")
	}
	next := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	var set *manifests.Set
	if f.file != "" {
		var err error
		if next, set, err = readWorkload(o, f.file, name); err != nil {
			return manifest{}, err
		}
	}
	now := next
	if f.from != "" {
		var err error
		if now, _, err = readWorkload(o, f.from, next.Name); err != nil {
			return manifest{}, err
		}
	}
	m, err := f.manifest(next, now)
	if err != nil || set == nil {
		return m, err
	}
	return m, m.readInventory(set, next)
}

// readInventory sets the preflight input from the file and the flags.
func (m *manifest) readInventory(set *manifests.Set, w *lws.LeaderWorkerSet) (err error) {
	if m.inventory, err = set.Inventory(w); err != nil {
		return exit.Usagef("%w", err)
	}
	m.inventory.Workload = w.DeepCopy()
	m.inventory.Workload.Spec.Replicas = ptr.To(int32(m.input.Replicas)) //nolint:gosec // a number of groups
	m.inventory.Rolling = m.input.Rolling
	m.inventory.Unseen[preflight.LongestRequests] = preflight.LongestRequestUnknown
	return nil
}

func (f *manifestFlags) manifest(next, now *lws.LeaderWorkerSet) (manifest, error) {
	m := manifest{name: next.Name, input: simulate.Input{
		Replicas: int(ptr.Deref(next.Spec.Replicas, 1)), New: next.Spec.LeaderWorkerTemplate, Old: now.Spec.LeaderWorkerTemplate,
	}}
	if m.name == "" {
		m.name = "workload"
	}
	if f.replicas >= 0 {
		m.input.Replicas = f.replicas
	}
	if n := m.input.Replicas; n > simulate.MaxGroups {
		return m, exit.Usagef("%s has %d groups, and a plan simulates at most %d groups: give fewer --replicas", m.name, n, simulate.MaxGroups)
	}
	m.input.Rolling = manifests.Rolling(next)
	for flag, v := range map[string]struct {
		text string
		to   *intstr.IntOrString
	}{
		"--max-unavailable": {f.maxUnavailable, &m.input.Rolling.MaxUnavailable}, "--max-surge": {f.maxSurge, &m.input.Rolling.MaxSurge},
	} {
		if v.text == "" {
			continue
		}
		*v.to = intstr.Parse(v.text)
		if n, err := intstr.GetScaledValueFromIntOrPercent(v.to, 100, false); err != nil || n < 0 {
			return m, exit.Usagef("%s %q: want a number of groups such as 1, or a percentage such as 25%%", flag, v.text)
		}
	}
	if now != next && equality.Semantic.DeepEqual(now.Spec.LeaderWorkerTemplate, next.Spec.LeaderWorkerTemplate) {
		m.warnings = append(m.warnings, &pb.Warning{Code: "NothingToRelease", Message: fmt.Sprintf(
			"the template of %s is the same in both files: the plan is for a release of any other template", m.name)})
	}
	if n := ptr.Deref(now.Spec.Replicas, 1); now != next && n != ptr.Deref(next.Spec.Replicas, 1) {
		m.warnings = append(m.warnings, &pb.Warning{Code: "ReplicasChange", Message: fmt.Sprintf(
			"replicas of %s change from %d to %d: LeaderWorkerSet scales at once, and the plan is for %d groups", m.name, n, m.input.Replicas, m.input.Replicas)})
	}
	return m, nil
}

// readWorkload reads the LeaderWorkerSet with a name from a file. An empty name means the only one.
func readWorkload(o *connect.Options, path, name string) (*lws.LeaderWorkerSet, *manifests.Set, error) {
	set, err := readManifests(o, path)
	if err != nil {
		return nil, nil, err
	}
	found, err := set.Workloads()
	if err != nil {
		return nil, nil, exit.Usagef("%w", err)
	}
	found = slices.DeleteFunc(found, func(w *lws.LeaderWorkerSet) bool {
		return name != "" && w.Name != name || w.Kind == plugin.KindDisaggregatedSet
	})
	switch {
	case len(found) == 1:
		return found[0], set, nil
	case len(found) > 1:
		return nil, nil, exit.Usagef("%s has %d LeaderWorkerSets: name one of them", path, len(found))
	case name != "":
		return nil, nil, exit.Usagef("%s has no LeaderWorkerSet %q", path, name)
	default:
		return nil, nil, exit.Usagef("%s has no LeaderWorkerSet", path)
	}
}

// readOne reads the file that is the only argument of a command, or stdin for "-".
func readOne(cmd *cobra.Command, args []string) ([]byte, error) {
	if len(args) != 1 {
		return nil, exit.Usagef("%s needs one file, or - for stdin, got %q", cmd.CommandPath(), args)
	}
	return readAll(args[0])
}

func readAll(path string) ([]byte, error) {
	if path == "-" {
		text, err := io.ReadAll(os.Stdin)
		if err != nil {
			return nil, fmt.Errorf("read stdin: %w", err)
		}
		return text, nil
	}
	return os.ReadFile(path)
}
