// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/words"
)

// course is a cluster to which a scenario happens, and its objects at the beginning.
type course struct {
	*fakeCluster

	user World
}

// TestCourses runs testdata/courses/*.txt. A course begins with the providers of a cluster. Its lines are what happens there:
//
//	want DESIRED               makes the writes that are due, in the words of Desired, and shows them, or why the next one can't be made, and the view
//	look DESIRED               shows the view alone
//	endpoints SIDE=POD,POD     are those of a Service from now on; portless ones lack the port
//	ready                      the canary has an endpoint, if there is its Service, and its pool a picker
//	accept [KIND NAME [C=S]]   gateways accept all routes and pools, or a route, with another status of a condition
//	edit KIND NAME PATCH       is a user's merge patch or JSON patch; also create and delete
//	check                      before a release
//	show KIND NAME [FIELD]     shows a field of an object, or its labels, annotations and spec
//	revisions STABLE UPDATE    are those of another release in place
//	gone                       the workload
func TestCourses(t *testing.T) {
	datadriven.Walk(t, "testdata/courses", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c := course{fakeCluster: providers[strings.ReplaceAll(d.Cmd, "-", " ")](t)}
			words.Set(t, d.CmdArgs, c.define)
			c.user = c.world
			var told strings.Builder
			for line := range strings.SplitSeq(d.Input, "\n") {
				told.WriteString(c.happen(line))
			}
			return told.String()
		})
	})
}

// define has the words for the workload and the policy.
func (c *course) define(f *flag.FlagSet) {
	stable, s := workload("vllm"), &c.setup
	f.Func("in-place", "the updated leaders", func(leaders string) error { c.inPlace(pods(leaders)...); return nil })
	f.BoolFunc("single-pods", "groups have no workers", func(string) error {
		stable.Spec.LeaderWorkerTemplate.Size = ptr.To[int32](1)
		*s = NewSetup(stable, s.Canary, s.Policy, nil)
		return nil
	})
	f.Func("leader-label", "that leaders have, and workers do not", func(label string) error {
		stable.Spec.LeaderWorkerTemplate.LeaderTemplate = &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{label: "leader"}}}
		*s = NewSetup(stable, s.Canary, s.Policy, nil)
		return nil
	})
	f.Func("canary-leader", "a label of canary leaders", func(label string) error {
		s.CanaryLeader = map[string]string{label: "canary"}
		return nil
	})
	if pool := s.Policy.Pool; pool != nil {
		f.StringVar(&pool.Picker, "picker", pool.Picker, "of the canary's pool")
		f.Func("picker-port", "of the canary's pool", words.Number(&pool.PickerPort))
	}
}

func pods(names string) []string {
	return strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
}

func (c *course) happen(line string) string {
	c.t.Helper()
	fields := strings.SplitN(line+"   ", " ", 4)
	key, rest := Key{fields[1], fields[2]}, strings.TrimSpace(fields[3])
	switch fields[0] {
	case "want", "look":
		return c.want(line)
	case "endpoints":
		set := func(pointer *[]string) func(string) error {
			return func(s string) error { *pointer = pods(s); return nil }
		}
		words.Line(c.t, line, func(f *flag.FlagSet) {
			f.Func("stable", "of the stable Service", set(&c.world.StableReady))
			f.Func("canary", "of the canary Service", set(&c.world.CanaryReady))
			f.Func("portless", "of the canary Service, without its port", set(&c.world.CanaryPortless))
			f.Func("picker", "of the canary's picker", set(&c.world.PickerReady))
		})
	case "ready":
		c.ready()
	case "accept":
		c.acceptWith(key, rest)
	case "edit":
		c.edit(key, rest)
	case "create":
		c.store(key, map[string]any{"kind": key.Kind, "metadata": map[string]any{"name": key.Name}})
	case "delete":
		c.store(key, nil)
	case "gone":
		c.setup.Leader, c.setup.Worker = nil, nil
	case "check":
		return fmt.Sprintf("check\n  %v\n", problem(Check(c.setup, c.world)))
	case "show":
		return c.show(line, key, rest)
	case "revisions":
		c.setup = NewSetupInPlace(workload("vllm"), fields[1], fields[2], c.setup.Policy, nil)
	default:
		c.t.Fatalf("what is %q?", line)
	}
	return ""
}

// problem returns an error's reason and message.
func problem(err error) string {
	if err == nil {
		return "valid"
	}
	return fmt.Sprintf("%s: %s", drivererr.Name(drivererr.Reason(err)), status.Convert(err).Message())
}

func (c *course) want(line string) string {
	c.t.Helper()
	var d Desired
	verb := words.Line(c.t, line, func(f *flag.FlagSet) {
		f.Func("weight", "of the canary", words.Number(&d.Weight))
		f.Func("mirror", "percent of the requests", words.Number(&d.Mirror))
		f.Func("header", "name of a header with value yes", func(name string) error {
			d.HeaderRoutes = []HeaderRoute{{Name: "beta", Matches: []HeaderMatch{{Name: name, Value: "yes"}}}}
			return nil
		})
		f.BoolVar(&d.Isolated, "isolated", false, "the stable Service selects stable leaders only")
		f.BoolVar(&d.Prepared, "prepared", false, "the canary Service exists")
		f.BoolVar(&d.SplitEnded, "split-ended", false, "in place")
		f.BoolVar(&d.HandedOver, "handed-over", false, "the canary becomes the workload")
	})
	told := line + "\n"
	for range 20 {
		write, err := Next(c.setup, d, c.world)
		if verb == "look" || write == nil && err == nil {
			break
		}
		if err != nil {
			told += fmt.Sprintf("  %s\n", problem(err))
			break
		}
		told += fmt.Sprintf("  %s %s\n", write.Verb, write.Key)
		c.apply(write)
	}
	return told + c.describe(Look(c.setup, d, c.world))
}

// describe shows a view, and whether nothing of a release is left.
func (c *course) describe(v View) string {
	told := fmt.Sprintf("  %s, weight %d", v.Stage, v.Weight)
	for _, is := range []struct {
		text string
		set  bool
	}{
		{"prepared", v.Prepared}, {"isolated", v.Isolated}, {"pinned", v.Pinned}, {"withdrawn", v.Withdrawn},
		{"all as the user's", c.world.Stable != nil && c.differs(c.user) == ""},
	} {
		if is.set {
			told += ", " + is.text
		}
	}
	if v.Reason != "" {
		told += fmt.Sprintf("\n  %s: %s", v.Reason, v.Message)
	}
	return told + "\n"
}

// acceptWith has gateways accept a route, with a condition that a user gives, or everything.
func (c *course) acceptWith(key Key, condition string) {
	c.t.Helper()
	if key.Kind == "" {
		c.acceptAll()
		return
	}
	kind, value, _ := strings.Cut(condition, "=")
	c.world.Routes = maps.Clone(c.world.Routes)
	c.world.Routes[key] = withStatus(c.t, Route{key, c.world.Routes[key]}, func(conditions []any) []any {
		kept := slices.DeleteFunc(conditions, func(o any) bool { return o.(map[string]any)["type"] == kind })
		if kind == "" {
			return kept
		}
		return append(kept, map[string]any{
			"type": kind, "status": value, "observedGeneration": c.world.Routes[key].GetGeneration(), "reason": "R", "message": "m",
		})
	}).Object
}

// edit makes a merge patch, or a JSON patch, which is a list. The version is another one afterwards.
func (c *course) edit(key Key, patch string) {
	c.t.Helper()
	apply := jsonpatch.MergePatch
	if strings.HasPrefix(patch, "[") {
		apply = func(object, patch []byte) ([]byte, error) {
			p, err := jsonpatch.DecodePatch(patch)
			if err != nil {
				return nil, err
			}
			return p.Apply(object)
		}
	}
	base, err := json.Marshal(c.find(key))
	content := map[string]any{}
	after, errPatch := apply(base, []byte(patch))
	require.NoError(c.t, errors.Join(err, errPatch, json.Unmarshal(after, &content)), "edit %s", key)
	(&unstructured.Unstructured{Object: content}).SetResourceVersion(c.version())
	c.store(key, content)
}

// show returns a field of an object, or its labels, annotations and spec.
func (c *course) show(line string, key Key, path string) string {
	c.t.Helper()
	content := map[string]any{}
	c.decode(c.find(key), &content)
	o := &unstructured.Unstructured{Object: content}
	var shown any = map[string]any{"labels": o.GetLabels(), "annotations": o.GetAnnotations(), "spec": content["spec"]}
	if path != "" {
		shown, _, _ = unstructured.NestedFieldNoCopy(content, strings.Split(path, ".")...)
	}
	raw, err := yaml.Marshal(shown)
	require.NoError(c.t, err)
	return line + "\n" + string(raw)
}

// inPlace makes the release one in place, with the given updated leaders.
func (c *fakeCluster) inPlace(updated ...string) {
	c.setup = NewSetupInPlace(workload("vllm"), "old", "new", c.setup.Policy, updated)
}
