// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package sarif

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	home = "https://github.com/lockstep-rollouts/lockstep"
	help = home + "/blob/main/docs/reference-preflight.md#"
)

// Locate returns the file and the line of a field. The file is empty, or the line 0, if it is unknown.
type Locate func(ref *pb.ObjectRef, field string) (file string, line int)

// Preflight returns the log of one run. Rules that only a newer driver has are described by their findings.
func Preflight(version string, r *pb.PreflightResponse, locate Locate) ([]byte, error) {
	rules := descriptors(r.GetFindings())
	one := run{
		Tool:        tool{component{Name: "lockstep preflight", Version: version, InformationURI: home, Rules: rules}},
		Invocations: []invocation{{ExecutionSuccessful: true, ToolExecutionNotifications: notifications(r.GetUnchecked())}},
		Results:     []result{},
	}
	for _, f := range r.GetFindings() {
		i := slices.IndexFunc(rules, func(d descriptor) bool { return d.ID == f.GetRule() })
		one.Results = append(one.Results, result{
			RuleID: f.GetRule(), RuleIndex: i, Level: level(f.GetSeverity()), Locations: []location{place(f, locate)},
			Message: message{fmt.Sprintf("%s: %s. %s. %s.", preflight.Text(f.GetObject()), f.GetMessage(), f.GetWhy(), f.GetFix())},
		})
	}
	text, err := json.MarshalIndent(sarifLog{Schema: schema, Version: version210, Runs: []run{one}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode SARIF: %w", err)
	}
	return append(text, '\n'), nil
}

func descriptors(findings []*pb.Finding) []descriptor {
	var out []descriptor
	for _, rule := range preflight.Rules() {
		out = append(out, descriptor{
			ID: rule.ID, ShortDescription: message{rule.Title}, FullDescription: message{rule.Why + "."}, Help: message{rule.Fix + "."},
			HelpURI: help + strings.ToLower(rule.ID), DefaultConfiguration: configuration{level(rule.Severity)},
		})
	}
	for _, f := range findings {
		if !slices.ContainsFunc(out, func(d descriptor) bool { return d.ID == f.GetRule() }) {
			out = append(out, descriptor{
				ID: f.GetRule(), ShortDescription: message{f.GetRule()}, FullDescription: message{f.GetWhy() + "."}, Help: message{f.GetFix() + "."},
				HelpURI: help, DefaultConfiguration: configuration{level(f.GetSeverity())},
			})
		}
	}
	return out
}

// level returns SARIF's level. An unknown severity is a warning.
func level(s pb.Severity) string {
	switch s {
	case pb.Severity_SEVERITY_ERROR:
		return "error"
	case pb.Severity_SEVERITY_INFO:
		return "note"
	default:
		return "warning"
	}
}

func notifications(unchecked []*pb.Unchecked) []notification {
	out := make([]notification, 0, len(unchecked))
	for _, u := range unchecked {
		out = append(out, notification{"note", message{fmt.Sprintf("%s: not checked (needs %s): %s", strings.Join(u.GetRules(), ", "), u.GetSubject(), u.GetReason())}})
	}
	return out
}

func place(f *pb.Finding, locate Locate) location {
	name := preflight.Text(f.GetObject())
	if f.GetField() != "" {
		name += " " + f.GetField()
	}
	out := location{Logical: []logicalLocation{{Name: f.GetObject().GetName(), FullyQualifiedName: name, Kind: "resource"}}}
	if locate == nil {
		return out
	}
	if file, line := locate(f.GetObject(), f.GetField()); file != "" {
		uri := url.URL{Path: filepath.ToSlash(file)}
		out.Physical = &physicalLocation{Artifact: artifact{uri.String()}}
		if line > 0 {
			out.Physical.Region = &region{line}
		}
	}
	return out
}
