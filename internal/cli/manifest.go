// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/forecast"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// manifestFlags say what to plan where there is no cluster to ask.
type manifestFlags struct {
	file, from               string
	replicas                 int
	maxUnavailable, maxSurge string
}

func (f *manifestFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.file, "filename", "", "plan the LeaderWorkerSet in this YAML or JSON file, without a cluster; - for stdin")
	flags.StringVar(&f.from, "from", "", "with --filename: the file with the LeaderWorkerSet as it runs now (default: the same, but for its template)")
	flags.IntVar(&f.replicas, "replicas", -1, "without NAME: plan so many groups; with --filename instead of those in the file")
	flags.StringVar(&f.maxUnavailable, "max-unavailable", "", "without NAME: the user's own maxUnavailable (default: the file's, or 1)")
	flags.StringVar(&f.maxSurge, "max-surge", "", "without NAME: the user's own maxSurge (default: the file's, or 0)")
}

// given says whether there is something to plan without a cluster.
func (f *manifestFlags) given() bool {
	return f.file != "" || f.from != "" || f.replicas >= 0 || f.maxUnavailable != "" || f.maxSurge != ""
}

// manifest is what was read.
type manifest struct {
	name     string
	input    forecast.Input
	warnings []*pb.Warning
}

// read reads the files, and lays the flags over them. At most one name chooses among several LeaderWorkerSets of a file.
func (f *manifestFlags) read(args []string) (manifest, error) {
	name := ""
	if len(args) > 1 {
		return manifest{}, usageErrorf("want the name of one LeaderWorkerSet at most, got %q", args)
	}
	if len(args) == 1 {
		name = args[0]
	}
	if f.file == "" && (f.from != "" || f.replicas < 0) {
		return manifest{}, usageErrorf("--from, --max-unavailable and --max-surge need --filename, or --replicas alone")
	}
	next := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if f.file != "" {
		var err error
		if next, err = readWorkload(f.file, name); err != nil {
			return manifest{}, err
		}
	}
	now := next
	if f.from != "" {
		var err error
		if now, err = readWorkload(f.from, next.Name); err != nil {
			return manifest{}, err
		}
	}
	return f.manifest(next, now)
}

func (f *manifestFlags) manifest(next, now *lws.LeaderWorkerSet) (manifest, error) {
	m := manifest{name: next.Name, input: forecast.Input{
		Replicas: int(ptr.Deref(next.Spec.Replicas, 1)), New: next.Spec.LeaderWorkerTemplate, Old: now.Spec.LeaderWorkerTemplate,
	}}
	if m.name == "" {
		m.name = "workload"
	}
	if f.replicas >= 0 {
		m.input.Replicas = f.replicas
	}
	// What LWS's webhook sets where there is none.
	m.input.Rolling = lws.RollingUpdateConfiguration{MaxUnavailable: intstr.FromInt32(1), Partition: ptr.To[int32](0)}
	if own := next.Spec.RolloutStrategy.RollingUpdateConfiguration; own != nil {
		m.input.Rolling = *own
	}
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
			return m, usageErrorf("%s %q: want a number of groups such as 1, or a percentage such as 25%%", flag, v.text)
		}
	}
	if now != next && equality.Semantic.DeepEqual(now.Spec.LeaderWorkerTemplate, next.Spec.LeaderWorkerTemplate) {
		m.warnings = append(m.warnings, &pb.Warning{Code: "NothingToRelease", Message: fmt.Sprintf(
			"both files have the same template of %s: this is what the release of another one would do", m.name)})
	}
	if n := ptr.Deref(now.Spec.Replicas, 1); now != next && n != ptr.Deref(next.Spec.Replicas, 1) {
		m.warnings = append(m.warnings, &pb.Warning{Code: "ReplicasChange", Message: fmt.Sprintf(
			"%s has %d groups and is to have %d: they come or go at once, whatever the release does, which is planned with %d", m.name, n, m.input.Replicas, m.input.Replicas)})
	}
	return m, nil
}

// readWorkload reads the LeaderWorkerSet of a file that may have other objects, the one of a name unless that is empty.
func readWorkload(path, name string) (*lws.LeaderWorkerSet, error) {
	text, err := readAll(path)
	if err != nil {
		return nil, err
	}
	var found []*lws.LeaderWorkerSet
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, usageErrorf("%s: %w", path, err)
		}
		w, err := workloadOf(document)
		if err != nil {
			return nil, usageErrorf("%s: %w", path, err)
		}
		if w != nil && (name == "" || w.Name == name) {
			found = append(found, w)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, usageErrorf("%s has %d LeaderWorkerSets: name one of them", path, len(found))
	case name != "":
		return nil, usageErrorf("%s has no LeaderWorkerSet %q", path, name)
	default:
		return nil, usageErrorf("%s has no LeaderWorkerSet", path)
	}
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

// workloadOf is the LeaderWorkerSet in a document, nil if that is another object.
func workloadOf(document []byte) (*lws.LeaderWorkerSet, error) {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, fmt.Errorf("read an object: %w", err)
	}
	if kind.Kind != "LeaderWorkerSet" {
		return nil, nil //nolint:nilnil // it is another object
	}
	if kind.APIVersion != lws.GroupVersion.String() {
		return nil, fmt.Errorf("the LeaderWorkerSet has apiVersion %q, want %q", kind.APIVersion, lws.GroupVersion)
	}
	w := &lws.LeaderWorkerSet{}
	if err := yaml.UnmarshalStrict(document, w); err != nil {
		return nil, fmt.Errorf("read the LeaderWorkerSet: %w", err)
	}
	if n := ptr.Deref(w.Spec.Replicas, 1); n < 0 {
		return nil, fmt.Errorf("LeaderWorkerSet %s has %d replicas", w.Name, n)
	}
	return w, nil
}
