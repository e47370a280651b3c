// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/native"
)

var table = native.Table{
	{Path: "name"},
	{Path: "template"},
	{Path: "delay", Verdict: native.NoEffect, Note: "there is nothing to delay"},
	{Path: "weight", Verdict: native.Refused, Accepts: "100", Note: "use percentages"},
	{Path: "plugins", Verdict: native.Refused, Note: "another plugin"},
	{Path: "plugins[a/b]"},
	{Path: "steps[].pause"},
	{Path: "steps[].analysis"},
	{Path: "steps[].analysis.args[].hash", Verdict: native.Refused, Note: "no pods"},
}

func TestJudge(t *testing.T) {
	t.Parallel()
	const unknown = "this version of Lockstep did not judge what it does to a LeaderWorkerSet: remove it"
	refused := func(path, note string) []native.Field {
		return []native.Field{{Path: path, Verdict: native.Refused, Note: note}}
	}
	tests := map[string]struct {
		object string
		want   []native.Field
	}{
		"works, with all below":        {`{"name": "x", "template": {"spec": {"a": 1}}}`, nil},
		"no effect":                    {`{"delay": 0}`, []native.Field{{Path: "spec.delay", Verdict: native.NoEffect, Note: "there is nothing to delay"}}},
		"refused":                      {`{"weight": 1000}`, []native.Field{{Path: "spec.weight", Verdict: native.Refused, Accepts: "100", Note: "use percentages"}}},
		"value of the default":         {`{"weight": 100}`, nil},
		"not in the table":             {`{"surge": 1}`, refused("spec.surge", unknown)},
		"an object not in the table":   {`{"surge": {}}`, refused("spec.surge", unknown)},
		"unset":                        {`{"surge": null, "fast": false, "class": "", "extra": []}`, nil},
		"a step not in the table":      {`{"steps": [{"pause": {}}, {"jump": {"to": 3}}]}`, refused("spec.steps[1].jump", unknown)},
		"empty step":                   {`{"steps": [{}]}`, nil},
		"refused below one that works": {`{"steps": [{"analysis": {"args": [{"name": "h"}, {"hash": "x"}]}}]}`, refused("spec.steps[0].analysis.args[1].hash", "no pods")},
		"others below one that works":  {`{"steps": [{"analysis": {"dryRun": true, "args": [{"name": "h", "new": 1}]}}]}`, nil},
		"works below a refused one":    {`{"plugins": {"a/b": {"c": 1}}}`, nil},
		"another key":                  {`{"plugins": {"a/b": {}, "c.d/e": {}}}`, refused("spec.plugins[c.d/e]", "another plugin")},
		"not the type it should be":    {`{"steps": "x"}`, refused("spec.steps", unknown)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var object map[string]any
			require.NoError(t, json.Unmarshal([]byte(test.object), &object))
			assert.Empty(t, cmp.Diff(test.want, table.Judge("spec", object)), "-want +got")
		})
	}
}

func TestRefusalAndIgnored(t *testing.T) {
	t.Parallel()
	findings := table.Judge("spec", map[string]any{"delay": 1, "weight": 5, "surge": 1})
	err := native.Refusal(findings)
	assert.True(t, err != nil && strings.HasPrefix(err.Error(), "spec.surge: ") && strings.HasSuffix(err.Error(), "; spec.weight: use percentages"),
		"refusal: %v", err)
	assert.Equal(t, "spec.delay: there is nothing to delay", native.Ignored(findings), "ignored")
	assert.NoError(t, native.Refusal(table.Judge("spec", map[string]any{"delay": 1})), "a field without effect refuses")
}
