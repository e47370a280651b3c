// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func diffJSON(want, got any) string { return cmp.Diff(want, got) }

// TestRoutes runs the scenarios in testdata/routes.txt. Each line of the output is a rule:
//
//	name | matches | filters | backendRefs and their weights
//
// Commands: load, reapply (the loaded manifest), set (what is desired), edit (a weight, as a user).
func TestRoutes(t *testing.T) {
	var user, route Route
	datadriven.RunTest(t, "testdata/routes.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "load":
			var file string
			d.ScanArgs(t, "file", &file)
			user = readRoute(t, file)
			route = user
			return describe(route)
		case "reapply":
			route = user
			return describe(route)
		case "edit":
			var rule, ref, weight int
			d.ScanArgs(t, "rule", &rule)
			d.ScanArgs(t, "ref", &ref)
			d.ScanArgs(t, "weight", &weight)
			route = Route{route.Key, route.Object.DeepCopy()}
			objectList(route.rules()[rule], "backendRefs")[ref]["weight"] = int64(weight)
			return describe(route)
		case "set":
			return setRoute(t, d, &route, user)
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		}
	})
}

func setRoute(t *testing.T, d *datadriven.TestData, route *Route, user Route) string {
	t.Helper()
	desired, workload := Desired{}, "vllm"
	d.MaybeScanArgs(t, "workload", &workload)
	d.MaybeScanArgs(t, "weight", &desired.Weight)
	d.MaybeScanArgs(t, "mirror", &desired.Mirror)
	for line := range strings.Lines(d.Input) {
		name, header, _ := strings.Cut(strings.TrimSpace(line), ": ")
		key, value, _ := strings.Cut(header, "=")
		regex := strings.HasPrefix(value, "~")
		desired.HeaderRoutes = append(desired.HeaderRoutes, HeaderRoute{
			Name: name, Matches: []HeaderMatch{{Name: key, Value: strings.TrimPrefix(value, "~"), Regex: regex}},
		})
	}
	s := setupOf(workload)
	next, changed, err := desiredRoute(*route, s, desired)
	if err != nil {
		return err.Error()
	}
	*route = next
	_, again, err := desiredRoute(*route, s, desired)
	assert.True(t, !again && err == nil, "%s: the second call changes the rules again (%v)", d.Pos, err)
	switch {
	case !changed:
		return "unchanged\n"
	case diffJSON(user.Object.Object, route.Object.Object) == "":
		return "restored\n"
	}
	return describe(*route)
}

// describe prints the rules, one a line.
func describe(r Route) string {
	var b strings.Builder
	for _, rule := range r.rules() {
		fmt.Fprintf(&b, "%s | %s | %s | %s\n", stringField(rule, "name", "-"), brief(objectList(rule, "matches"), matchText),
			brief(objectList(rule, "filters"), filterText), brief(objectList(rule, "backendRefs"), refText))
	}
	return b.String()
}

func brief(items []object, text func(object) string) string {
	out := make([]string, 0, len(items))
	for _, item := range items {
		out = append(out, text(item))
	}
	return strings.Join(out, ", ")
}

func matchText(m object) string {
	var out []string
	for _, part := range []string{"path", "method"} {
		switch v := m[part].(type) {
		case object:
			out = append(out, stringField(v, "type", "")+" "+stringField(v, "value", stringField(v, "service", "")))
		case string:
			out = append(out, v)
		}
	}
	for _, h := range objectList(m, "headers") {
		out = append(out, stringField(h, "name", "")+map[string]string{matchExact: "=", matchRegex: "=~"}[stringField(h, "type", "")]+stringField(h, "value", ""))
	}
	return strings.Join(out, " ")
}

func filterText(f object) string {
	mirror, ok := f["requestMirror"].(object)
	if !ok {
		return stringField(f, "type", "")
	}
	ref, _ := mirror["backendRef"].(object)
	return fmt.Sprintf("mirror %d%% to %s:%v", intField(mirror, "percent", 100), ref["name"], ref["port"])
}

func refText(ref object) string {
	out := fmt.Sprintf("%s:%v=%d", ref["name"], ref["port"], weightOf(ref))
	if filters := objectList(ref, "filters"); len(filters) > 0 {
		out += " (" + brief(filters, filterText) + ")"
	}
	return out
}

// TestCookie: a cookie is matched by an expression for the header with all cookies, at any position.
func TestCookie(t *testing.T) {
	r, s := readRoute(t, "httproute.yaml"), setupOf("vllm")
	got := apply(t, r, s, Desired{HeaderRoutes: []HeaderRoute{cookie("tes.ter", "al+ways")}})
	var expression string
	for _, rule := range got.rules() {
		for _, match := range objectList(rule, "matches") {
			for _, h := range objectList(match, "headers") {
				if stringField(h, "name", "") == "Cookie" && stringField(h, "type", "") == "RegularExpression" {
					expression = stringField(h, "value", "")
				}
			}
		}
	}
	if expression == "" {
		t.Fatalf("no rule matches the cookie: %v", got.rules())
	}
	compiled := regexp.MustCompile(expression)
	for header, want := range map[string]bool{
		"tes.ter=al+ways": true, "a=b; tes.ter=al+ways": true, "a=b;tes.ter=al+ways": true, "tes.ter=al+ways; a=b": true, "a=b; tes.ter=al+ways; c=d": true,
		"": false, "tester=al+ways": false, "tes.ter=always": false, "tes.ter=al+ways2": false, "xtes.ter=al+ways": false, "a=tes.ter=al+ways": false,
		"Tes.ter=al+ways": false,
	} {
		assert.Equal(t, want, compiled.MatchString(header), "%q matches %q: %t", expression, header, !want)
	}
	again := apply(t, got, s, Desired{})
	assert.Empty(t, diffJSON(r.Object.Object, again.Object.Object), "the route is not restored")
	taken := Route{r.Key, r.Object.DeepCopy()}
	for _, rule := range taken.rules() {
		rule["matches"] = []any{object{"headers": []any{object{"type": "Exact", "name": "cookie", "value": "a=b"}}}}
	}
	_, _, err := desiredRoute(taken, s, Desired{HeaderRoutes: []HeaderRoute{cookie("tester", "always")}})
	assert.ErrorContains(t, err, "header Cookie", "a rule that matches the header already")
}

// TestHeaderRouteForNamedRule: a rule with a name gets shares, but no header route, which policies with its sectionName would not cover.
func TestHeaderRouteForNamedRule(t *testing.T) {
	user, s := readRoute(t, "httproute.yaml"), setupOf("vllm", Key{KindHTTPRoute, "llm"})
	header := Desired{Weight: 10, HeaderRoutes: []HeaderRoute{{Name: "beta", Matches: []HeaderMatch{{Name: "x-canary", Value: "yes"}}}}}
	withHeader := apply(t, user, s, header) // rules that don't lead to the Service have names
	named := Route{withHeader.Key, withHeader.Object.DeepCopy()}
	named.rules()[2]["name"] = "chat"
	assert.Equal(t, "chat", stringField(apply(t, named, s, Desired{Weight: 10}).rules()[1], "name", ""), "a share changes the name of the rule")
	_, _, err := desiredRoute(named, s, header)
	for _, word := range []string{"HTTPRoute llm", `rule "chat"`, "sectionName", "header route beta", "remove"} {
		assert.True(t, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE && strings.Contains(err.Error(), word),
			"%v, want %s", err, word)
	}
	shrunk, changed, err := shrunkRoute(named, s, header)
	require.True(t, err == nil && changed, "the header rule of a rule that gets a name stays: changed %t, %v", changed, err)
	after := describe(shrunk)
	assert.Equal(t, 1, strings.Count(after, "x-canary=yes"), "want the header rule of the rule without a name only:\n%s", after)
}

// TestEmptyMatches: the header rule of a rule with an empty list of matches is known with what the API server adds to it.
func TestEmptyMatches(t *testing.T) {
	for kind, added := range map[string]object{
		KindHTTPRoute: {"path": object{"type": "PathPrefix", "value": "/"}}, // the API server gives each match a path
		KindGRPCRoute: {},
	} {
		r, s := readRoute(t, strings.ToLower(kind)+".yaml"), setupOf("vllm")
		user := r.with(t, []any{object{"matches": []any{}, "backendRefs": []any{object{"name": "vllm", "port": int64(80), "weight": int64(1)}}}})
		header := Desired{HeaderRoutes: []HeaderRoute{{Name: "beta", Matches: []HeaderMatch{{Name: "x-canary", Value: "yes"}}}}}
		got := apply(t, user, s, header)
		match := objectList(got.rules()[0], "matches")[0]
		for field, value := range added {
			match[field] = value
		}
		_, grows, err := desiredRoute(got, s, header)
		require.NoError(t, err)
		_, shrinks, err := shrunkRoute(got, s, header)
		assert.True(t, !grows && !shrinks && err == nil, "%s: written again: %t, %t, %v", kind, grows, shrinks, err)
		assert.Equal(t, user, apply(t, got, s, Desired{}), "%s is not restored", kind)
	}
}

// TestRouteLimits: what no API server accepts is refused before it is written, unless the route has as much already.
func TestRouteLimits(t *testing.T) {
	user, s := readRoute(t, "httproute.yaml"), setupOf("vllm", Key{KindHTTPRoute, "llm"})
	list := func(n int, of func(i int) any) (out []any) {
		for i := range n {
			out = append(out, of(i))
		}
		return out
	}
	rule := func(i, matches, headers, filters int) any {
		return object{
			"backendRefs": []any{object{"name": "vllm", "port": int64(80)}},
			"filters":     list(filters, func(int) any { return object{"type": "ExtensionRef"} }),
			"matches": list(matches, func(j int) any {
				header := func(k int) any { return object{"name": fmt.Sprintf("x-%d", k), "value": "a"} }
				return object{"path": object{"value": fmt.Sprintf("/%d/%d", i, j)}, "headers": list(headers, header)}
			}),
		}
	}
	route := func(name string) HeaderRoute {
		return HeaderRoute{Name: name, Matches: []HeaderMatch{{Name: "x-canary", Value: name}}}
	}
	alpha, beta := route("alpha"), route("beta")
	for _, tc := range []struct {
		name                             string
		rules, matches, headers, filters int
		before, d                        Desired
		want                             string // "": it is accepted
	}{
		{"16 rules", 8, 1, 0, 0, Desired{}, Desired{HeaderRoutes: []HeaderRoute{beta}}, ""},
		{"17 rules and more", 9, 1, 0, 0, Desired{}, Desired{HeaderRoutes: []HeaderRoute{beta}}, "18 rules, more than the 16"},
		{"the second header route", 8, 1, 0, 0, Desired{HeaderRoutes: []HeaderRoute{alpha}}, Desired{HeaderRoutes: []HeaderRoute{alpha, beta}}, "24 rules"},
		{"128 matches", 2, 32, 0, 0, Desired{}, Desired{HeaderRoutes: []HeaderRoute{beta}}, ""},
		{"more matches", 2, 33, 0, 0, Desired{}, Desired{HeaderRoutes: []HeaderRoute{beta}}, "132 matches in all rules together, more than the 128"},
		{"16 headers", 1, 1, 15, 0, Desired{}, Desired{HeaderRoutes: []HeaderRoute{beta}}, ""},
		{"17 headers", 1, 1, 16, 0, Desired{}, Desired{HeaderRoutes: []HeaderRoute{beta}}, "17 headers in a match"},
		{"17 filters", 1, 1, 0, 16, Desired{}, Desired{Mirror: 10}, "17 filters in a rule"},
		{"a share", 17, 1, 0, 0, Desired{}, Desired{Weight: 10}, ""},
	} {
		before := apply(t, user.with(t, list(tc.rules, func(i int) any { return rule(i, tc.matches, tc.headers, tc.filters) })), s, tc.before)
		_, changed, err := desiredRoute(before, s, tc.d)
		switch {
		case tc.want == "" && (err != nil || !changed):
			t.Errorf("%s: changed %t, %v", tc.name, changed, err)
		case tc.want != "" && (drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE || !strings.Contains(err.Error(), "HTTPRoute llm would have "+tc.want)):
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	// Another client has added rules meanwhile.
	full := apply(t, user.with(t, list(8, func(i int) any { return rule(i, 1, 0, 0) })), s, Desired{Weight: 50, HeaderRoutes: []HeaderRoute{alpha}})
	full = full.with(t, append(anySlice(full.rules()), rule(8, 1, 0, 0)))
	for _, d := range []Desired{{Weight: 10, HeaderRoutes: []HeaderRoute{alpha, beta}}, {HeaderRoutes: []HeaderRoute{beta}}, {}} {
		_, changed, err := shrunkRoute(full, s, d)
		assert.True(t, changed && err == nil, "a smaller share: changed %t, %v", changed, err)
	}
}

// TestFutureFields: unknown fields are kept, also in the copies for header routes.
func TestFutureFields(t *testing.T) {
	r, s := readRoute(t, "httproute.yaml"), setupOf("vllm")
	route := HeaderRoute{Name: "beta", Matches: []HeaderMatch{{Name: "x-canary", Value: "yes"}}}
	got := apply(t, r, s, Desired{Weight: 50, Mirror: 10, HeaderRoutes: []HeaderRoute{route}})
	kept := 0
	for _, rule := range got.rules() {
		if diffJSON(r.rules()[1]["fieldOfTheFuture"], rule["fieldOfTheFuture"]) == "" {
			kept++
		}
	}
	assert.Equal(t, 2, kept, "rules have the field, want the user's and the one that refines it")
}
