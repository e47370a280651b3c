// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gate decides by metrics whether a batch of a release may be followed by the next one.
//
// A [Gate] is a query, a range for its value, and how often to measure. [Parse] and [Template] make gates, a [Run] counts the
// measurements of one batch, and a [Prometheus] takes them. All but the last do no I/O.
//
// A value that Prometheus does not have is a failed measurement: missing metrics are no success. A query that Prometheus does not
// answer is neither: it is tried again, and fails its gate when Prometheus has not answered for too long.
package gate

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/lockstep-rollouts/lockstep/plugin"
)

// Gate is a check of the update revision by a metric. The keys in YAML are those of an entry of `gates` in a policy file.
type Gate struct {
	// Template is the name of the template that the other fields override. Empty means that there is none.
	Template string `yaml:"template,omitempty"`
	// Name is unique within a release. Default: that of the template.
	Name string `yaml:"name,omitempty"`
	// About says in a line what is measured.
	About string `yaml:"about,omitempty"`
	// Query is PromQL, and a text/template over [Subject]. Its result is a scalar, or a vector with one sample.
	Query string `yaml:"query,omitempty"`
	// Min and Max are the least and the greatest value that passes. Nil means no limit; one of them must be set.
	Min *float64 `yaml:"min,omitempty"`
	Max *float64 `yaml:"max,omitempty"`
	// Count is how many measurements are taken for a batch. Default 5.
	Count int `yaml:"count,omitempty"`
	// FailureLimit is how many of them may fail. Default 0.
	FailureLimit int `yaml:"failure_limit,omitempty"`
	// Interval is the time between two measurements. Default 30 s.
	Interval model.Duration `yaml:"interval,omitempty"`
	// Delay is the time from the batch being ready until the first measurement. Default: Window.
	Delay *model.Duration `yaml:"delay,omitempty"`
	// Window is the range of rates in templates. Default 2 min.
	Window model.Duration `yaml:"window,omitempty"`
	// Baseline is the range of rates of the stable revision in templates. It is longer than Window, since the stable groups of a late
	// batch get no requests. Default 1 h.
	Baseline model.Duration `yaml:"baseline,omitempty"`
}

// Subject is what a query is about.
type Subject struct {
	// Kind, Namespace and Name are those of the workload. An empty Kind means LeaderWorkerSet.
	Kind, Namespace, Name string
	// CanaryWorkload is the LeaderWorkerSet that has the canary's groups. Empty means that the release is in place.
	CanaryWorkload string
	// UpdateRevision and StableRevision are the values of the pods' label leaderworkerset.sigs.k8s.io/template-revision-hash, of a
	// DisaggregatedSet disaggregatedset.x-k8s.io/revision.
	UpdateRevision, StableRevision string
}

// Example returns a subject with values as real ones look, to try a query with.
func Example() Subject {
	return Subject{Namespace: "default", Name: "model", CanaryWorkload: "model-6c8b7d9f5", UpdateRevision: "6c8b7d9f5", StableRevision: "5d4f7c6b8"}
}

// data is what the template of a query can refer to.
type data struct {
	Subject

	Window, Baseline string
}

// Canary returns matchers of the series of the update revision.
func (d data) Canary() string { return d.matchers(cmp.Or(d.CanaryWorkload, d.Name), d.UpdateRevision) }

// Stable returns matchers of the series of the stable revision.
func (d data) Stable() string { return d.matchers(d.Name, d.StableRevision) }

// matchers matches labels that a PodMonitor makes of the pods' own, by podTargetLabels. Workloads with equal templates have equal revisions.
func (d data) matchers(name, revision string) string {
	labels := "leaderworkerset_sigs_k8s_io_name=%q,leaderworkerset_sigs_k8s_io_template_revision_hash=%q"
	if d.Kind == plugin.KindDisaggregatedSet {
		name, labels = d.Name, "disaggregatedset_x_k8s_io_name=%q,disaggregatedset_x_k8s_io_revision=%q"
	}
	return fmt.Sprintf("namespace=%q,"+labels, d.Namespace, name, revision)
}

// PromQL returns the query about a subject.
func (g Gate) PromQL(about Subject) (string, error) {
	parsed, err := template.New("query").Parse(g.Query)
	if err != nil {
		return "", fmt.Errorf("gate %s: parse query: %w", g.Name, err)
	}
	var text bytes.Buffer
	if err := parsed.Execute(&text, data{Subject: about, Window: g.Window.String(), Baseline: g.Baseline.String()}); err != nil {
		return "", fmt.Errorf("gate %s: fill in query: %w", g.Name, err)
	}
	return strings.TrimSpace(text.String()), nil
}

// Limits returns the range in words: "at most 1.2".
func (g Gate) Limits() string {
	var words []string
	if g.Min != nil {
		words = append(words, "at least "+formatNumber(*g.Min))
	}
	if g.Max != nil {
		words = append(words, "at most "+formatNumber(*g.Max))
	}
	return strings.Join(words, " and ")
}

// Passes reports whether a value is in the range. NaN is not.
func (g Gate) Passes(value float64) bool {
	return !math.IsNaN(value) && (g.Min == nil || value >= *g.Min) && (g.Max == nil || value <= *g.Max)
}

// formatNumber returns a number with at most four digits.
func formatNumber(value float64) string { return strconv.FormatFloat(value, 'g', 4, 64) }

//go:embed templates.yaml
var templatesYAML []byte

// Templates returns the gates that come with Lockstep, without their defaults.
func Templates() []Gate {
	var gates []Gate
	if err := yaml.Unmarshal(templatesYAML, &gates); err != nil {
		panic(err) // A test reads them.
	}
	return gates
}

// Template returns the gate of a template. The error names those that exist.
func Template(name string) (Gate, error) {
	g, err := findGate(name)
	if err != nil {
		return Gate{}, err
	}
	return g.complete(), nil
}

func findGate(name string) (Gate, error) {
	var names []string
	for _, g := range Templates() {
		if g.Name == name {
			return g, nil
		}
		names = append(names, g.Name)
	}
	return Gate{}, fmt.Errorf("there is no template %q; want one of %s", name, strings.Join(names, ", "))
}

// fields are the keys of a gate in YAML.
var fields = []string{
	"template", "name", "about", "query", "min", "max", "count", "failure_limit", "interval", "delay", "window", "baseline",
}

// Parse reads a list of gates. An error has the line.
func Parse(list *yaml.Node) ([]Gate, error) {
	if list.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: gates: want a list", list.Line)
	}
	gates := make([]Gate, 0, len(list.Content))
	for _, node := range list.Content {
		g, err := parseGate(node)
		if err != nil {
			return nil, fmt.Errorf("line %d: gates: %w", node.Line, err)
		}
		gates = append(gates, g)
	}
	return gates, nil
}

func parseGate(node *yaml.Node) (g Gate, err error) {
	if node.Kind != yaml.MappingNode {
		return g, errors.New("want a gate: a template, or a name with a query")
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		// Decode ignores unknown fields of a node, and a mistyped max would be no limit.
		if !slices.Contains(fields, key.Value) {
			return g, fmt.Errorf("line %d: unknown field %q; want one of %s", key.Line, key.Value, strings.Join(fields, ", "))
		}
		// The template comes first, whatever the order of the keys.
		if key.Value == "template" {
			if g, err = findGate(value.Value); err != nil {
				return g, fmt.Errorf("line %d: %w", value.Line, err)
			}
		}
	}
	if err := node.Decode(&g); err != nil {
		return g, fmt.Errorf("read: %w", err)
	}
	if err := g.checkZeros(node); err != nil {
		return g, err
	}
	g = g.complete()
	return g, g.validate()
}

// checkZeros refuses explicit zeros, which would mean the defaults.
func (g Gate) checkZeros(node *yaml.Node) error {
	zero := map[string]bool{"count": g.Count == 0, "interval": g.Interval == 0, "window": g.Window == 0, "baseline": g.Baseline == 0}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if key := node.Content[i]; zero[key.Value] {
			return fmt.Errorf("line %d: %s: want more than 0", key.Line, key.Value)
		}
	}
	return nil
}

// complete sets the defaults.
func (g Gate) complete() Gate {
	g.Interval = cmp.Or(g.Interval, model.Duration(30*time.Second))
	g.Window = cmp.Or(g.Window, model.Duration(2*time.Minute))
	g.Baseline = cmp.Or(g.Baseline, model.Duration(time.Hour))
	g.Count = cmp.Or(g.Count, 5)
	if g.Delay == nil {
		// Until a window has passed, rates contain requests from before the batch.
		g.Delay = new(g.Window)
	}
	return g
}

// maxCount bounds the measurements of a batch.
const maxCount = 10_000

// nameRule is what a name may be.
var nameRule = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (g Gate) validate() error {
	switch {
	case g.Query == "":
		return errors.New("a gate needs a template, or a name and a query")
	case !nameRule.MatchString(g.Name):
		return fmt.Errorf("name %q: want lower-case letters, digits and dashes, at most 63", g.Name)
	case g.Min == nil && g.Max == nil:
		return fmt.Errorf("gate %s has no limit: set max or min", g.Name)
	case g.Min != nil && g.Max != nil && *g.Min > *g.Max:
		return fmt.Errorf("gate %s: no value is %s", g.Name, g.Limits())
	case g.Count < 1 || g.Count > maxCount:
		return fmt.Errorf("gate %s: count %d: want 1 to %d", g.Name, g.Count, maxCount)
	case g.FailureLimit < 0 || g.FailureLimit >= g.Count:
		return fmt.Errorf("gate %s: failure_limit %d: want 0 to %d, less than count", g.Name, g.FailureLimit, g.Count-1)
	case time.Duration(g.Interval) < time.Second:
		// A shorter interval would mostly measure the same scrape again.
		return fmt.Errorf("gate %s: interval %s: want 1s or more", g.Name, g.Interval)
	}
	for _, limit := range []*float64{g.Min, g.Max} {
		if limit != nil && (math.IsNaN(*limit) || math.IsInf(*limit, 0)) {
			return fmt.Errorf("gate %s: limit %s: want a number", g.Name, formatNumber(*limit))
		}
	}
	// A query that fails for an example would fail for each batch.
	_, err := g.PromQL(Example())
	return err
}

// Check validates the gates of a release: each of them, and that their names differ.
func Check(gates []Gate) error {
	seen := map[string]bool{}
	for _, g := range gates {
		if err := g.validate(); err != nil {
			return err
		}
		if seen[g.Name] {
			return fmt.Errorf("two gates have the name %q", g.Name)
		}
		seen[g.Name] = true
	}
	return nil
}
