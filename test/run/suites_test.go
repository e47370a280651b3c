// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/compatibility"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
)

// module is the folder of the tests' module, in which the suites run.
const module = ".."

func readRepositoryTable(t *testing.T) []requirement {
	t.Helper()
	table, err := readTable(module)
	require.NoError(t, err)
	return table
}

// update is set by make generate.
var update = flag.Bool("update", false, "rewrite the table in test/README.md")

// The table of test/README.md is what the comments of the tests say.
func TestTable(t *testing.T) {
	file := filepath.Join(module, tableFile)
	content := files.Read(t, file)
	table := markdown(readRepositoryTable(t))
	heading, _, _ := strings.Cut(table, "\n")
	before, rest, found := strings.Cut(string(content), heading+"\n")
	_, after, ends := strings.Cut(rest, "\n\n")
	require.True(t, found && ends, "%s has no table %q", tableFile, heading)
	if want := before + table + "\n" + after; want != string(content) {
		require.True(t, *update, "the table of test/%s is stale: run make generate", tableFile)
		files.Write(t, file, []byte(want))
	}
}

func TestEverySuiteIsInTable(t *testing.T) {
	table := readRepositoryTable(t)
	for _, s := range whole {
		assert.NotEmpty(t, s.tests(table, levelAll), "the table has no test of suite %s", s.name)
	}
	for _, name := range []string{"e2e", "traffic", "argo", "kruise", "batchrelease"} {
		s, _, err := find([]string{name})
		require.NoError(t, err)
		if smoke, test := s[0].tests(table, levelSmoke), s[0].tests(table, levelTest); len(smoke) == 0 || len(test) <= len(smoke) {
			t.Errorf("suite %s has %d smoke tests and %d in make test", name, len(smoke), len(test))
		}
	}
}

// A suite that this machine can't run is left out, with the reason, unless it is named. Single tests are left out of any suite.
func TestSuitesThatNeedMore(t *testing.T) {
	all := whole
	t.Cleanup(func() { whole = all })
	var lacks error
	need := func() error { return lacks }
	whole = []suite{{name: "anywhere"}, {name: "root", lacks: need}, {name: "partly", packages: []string{"./x"}, lacks: need, demanding: []string{"TestRoot"}}}
	table := []requirement{{tests: []testName{{"x", "TestAny"}, {"x", "TestRoot"}}, level: levelAll}}
	for _, test := range []struct {
		name, left string
		lacks      error
		args       []string
		want, must string
	}{
		{name: "it lacks nothing", want: "anywhere root partly", must: "TestAny TestRoot"},
		{
			name: "it lacks something", lacks: errors.New("needs root"), want: "anywhere partly", must: "TestAny",
			left: "root: left out on this machine: needs root\npartly: TestRoot: left out on this machine: needs root",
		},
		{
			name: "a suite is named", lacks: errors.New("needs root"), args: []string{"root", "partly"}, want: "root partly", must: "TestAny",
			left: "partly: TestRoot: left out on this machine: needs root",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			lacks = test.lacks
			found, leftOut, err := find(test.args)
			require.NoError(t, err)
			var names, must []string
			for _, s := range found {
				names = append(names, s.name)
				must = append(must, mustRun(s, table, config{level: levelAll})...)
			}
			assert.Equal(t, test.want, strings.Join(names, " "), "runs")
			assert.Equal(t, test.left, strings.Join(leftOut, "\n"), "leaves out")
			assert.Equal(t, test.must, strings.Join(must, " "), "must run")
		})
	}
}

// A test that a machine may leave out exists and is in the table, so that it runs elsewhere.
func TestDemandingTestsAreInTable(t *testing.T) {
	table := readRepositoryTable(t)
	for _, s := range whole {
		for _, name := range s.demanding {
			assert.True(t, slices.Contains(s.tests(table, levelAll), name), "the table has no test %s of suite %s", name, s.name)
		}
	}
}

func TestMatrixHasEveryOtherVersion(t *testing.T) {
	run := map[string]bool{}
	for _, course := range matrix {
		resolved, err := course.versions.Resolve()
		require.NoError(t, err)
		for _, version := range []string{"Kubernetes " + resolved.Kubernetes, "LeaderWorkerSet " + resolved.LWS, "Argo Rollouts " + resolved.Argo,
			"Kruise Rollouts " + resolved.Kruise, "Gateway API " + resolved.GatewayAPI} {
			run[version] = true
		}
	}
	for _, c := range compatibility.All() {
		for _, version := range c.Versions {
			assert.True(t, run[c.Name+" "+version], "the matrix lacks %s %s, which docs/compatibility.md lists as tested", c.Name, version)
		}
	}
}

func TestComments(t *testing.T) {
	for _, test := range []struct {
		name, comment, fail string
		want                []requirement
	}{
		{name: "it proves nothing", comment: "TestPlan plans.\n"},
		{
			name:    "a whole test, and two subtests at a level, on two lines",
			comment: "TestPlan plans.\n\nProves: a rule.\nProves (test, canary, in-step=2/x): another: one\nof two.\n\nIt is fast.\n",
			want: []requirement{
				{"a rule", []testName{{"e2e", "TestPlan"}}, levelAll},
				{"another: one of two", []testName{{"e2e", "TestPlan/canary"}, {"e2e", "TestPlan/in-step=2/x"}}, levelTest},
			},
		},
		{name: "subtests without a level", comment: "Proves (canary): a rule.", want: []requirement{{"a rule", []testName{{"e2e", "TestPlan/canary"}}, levelAll}}},
		{name: "no requirement", comment: "Proves (test).", fail: "REQUIREMENT"},
		{name: "a level that does not exist", comment: "Proves (some times): a rule.", fail: "some times"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := readComment("e2e", "TestPlan", test.comment)
			if test.fail != "" {
				assert.ErrorContains(t, err, test.fail, "want an error with %q, got %v", test.fail, err)
				return
			}
			assert.True(t, err == nil && reflect.DeepEqual(got, test.want), "got %+v, %v", got, err)
		})
	}
}

// One test passes, one fails, and one of the table is missing.
func TestReportFails(t *testing.T) {
	events := filepath.Join(t.TempDir(), "events")
	record := `{"Action":"pass","Package":"x/argo","Test":"TestUndo"}
{"Action":"output","Package":"x/argo","Test":"TestAbort","Output":"=== RUN   TestAbort\n"}
{"Action":"output","Package":"x/argo","Test":"TestAbort","Output":"    abort_test.go:12: the canary is left\n"}
{"Action":"output","Package":"x/argo","Test":"TestAbort","Output":"        its events\n"}
{"Action":"fail","Package":"x/argo","Test":"TestAbort"}
{"Action":"pass","Package":"x/argo"}
`
	files.Write(t, events, []byte(record))
	failed := result{job: job{suite: suite{name: "argo"}}}
	failed.read(events)
	missing := result{job: job{suite: suite{name: "kruise"}, must: []string{"TestUndo", "TestSteps"}}}
	missing.read(events)
	missing.failed, missing.failures = 0, nil
	skipped := result{job: job{suite: suite{name: "traffic"}}, err: errors.New("exit status 2")}
	var out bytes.Buffer
	err := report(&out, []result{failed, missing, skipped, {job: job{suite: suite{name: "e2e"}}, passed: 3}})
	assert.True(t, err != nil && err.Error() == "failed: argo, kruise, traffic", "got %v", err)
	for _, want := range []string{"argo: failed: argo.TestAbort\n  abort_test.go:12: the canary is left\n", "kruise: did not run", "TestSteps", "traffic: exit status 2", "5 passed, 1 failed\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

// A signal has killed gotestsum, and the go command succeeds.
func TestReportFailsOfKilledRun(t *testing.T) {
	events := filepath.Join(t.TempDir(), "events")
	files.Write(t, events, []byte(`{"Action":"start","Package":"x/argo"}
{"Action":"run","Package":"x/argo","Test":"TestUndo"}
{"Action":"pass","Package":"x/argo","Test":"TestUndo"}
{"Action":"run","Package":"x/argo","Test":"TestAbort"}
`))
	r := result{job: job{suite: suite{name: "argo"}}}
	r.read(events)
	require.Error(t, report(&bytes.Buffer{}, []result{r}), "no error")
	assert.Contains(t, r.err.Error(), "killed while these ran: x/argo , x/argo TestAbort")
}

func TestReportFailsWithoutTests(t *testing.T) {
	events := filepath.Join(t.TempDir(), "events")
	files.Write(t, events, []byte(`{"Action":"pass","Package":"x/argo"}`))
	r := result{job: job{suite: suite{name: "argo"}}}
	r.read(events)
	assert.Error(t, report(&bytes.Buffer{}, []result{r}), "no error without tests")
}

// The report fails when a suite costs more than its budget, in tests or in writes; time is not judged.
func TestReportFailsOverBudget(t *testing.T) {
	writes := filepath.Join(t.TempDir(), "writes")
	files.Write(t, writes, []byte("20\n11\n"))
	for _, test := range []struct {
		name      string
		allow     budget
		uncounted bool
		want      string
	}{
		{name: "no budget"},
		{name: "within it", allow: budget{tests: 3, writes: 31}},
		{name: "a test too many", allow: budget{tests: 2, writes: 31}, want: "3 tests are more than its budget of 2"},
		{name: "a write too many", allow: budget{tests: 3, writes: 30}, want: "31 writes are more than its budget of 30"},
		{name: "writes that were not counted", allow: budget{tests: 3, writes: 31}, uncounted: true, want: "were not counted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := result{job: job{suite: suite{name: "e2e", budget: test.allow}}, took: time.Hour, passed: 2, failed: 1}
			if !test.uncounted {
				r.readWrites(writes)
			}
			r.over = r.job.suite.budget.exceeded(r)
			assert.True(t, strings.Contains(r.over, test.want) && (r.over == "") == (test.want == ""), "%q, want %q", r.over, test.want)
			r.failed = 0
			err := report(&bytes.Buffer{}, []result{r})
			assert.Equal(t, test.want == "", err == nil, "the report returns %v", err)
		})
	}
}

// Each test of a package that two suites share belongs to one of them.
func TestSuitesShareNoTest(t *testing.T) {
	table := readRepositoryTable(t)
	owner := map[testName]string{}
	for _, s := range whole {
		for _, row := range table {
			for _, test := range row.tests {
				if !s.has(test) {
					continue
				}
				other := owner[test]
				assert.False(t, other != "" && other != s.name, "%v is in the suites %s and %s", test, other, s.name)
				owner[test] = s.name
			}
		}
	}
	for _, name := range monitored {
		got := owner[testName{"e2e", name}]
		assert.Equal(t, "monitoring", got, "%s is in suite %q, and `make test` would build Prometheus or install a browser", name, got)
	}
}
