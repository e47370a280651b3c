// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// Argo calls the traffic router in each of its reconciles. While nothing changes that costs no request to the API server.
//
// It runs alone: the plugins' requests that belong to no namespace, such as discovery when a release begins, can't be told apart
// by the test that made them necessary.
func TestIdle(t *testing.T) {
	e := newRouted(t, routed)
	const reconciles = 20
	measure := func(when string) {
		t.Helper()
		for e.touched(when, 3) != nil {
			// What was begun ends first.
		}
		found := e.touched(when, reconciles)
		t.Logf("%s: %d reconciles of the controller, %d requests of the plugins: %s", when, reconciles, len(found), count(found))
		// A plugin that has just been started asks once more what it may do, however often the controller looks.
		begun := slices.DeleteFunc(slices.Clone(found), func(r string) bool { return r != "create selfsubjectaccessreviews" })
		if len(found)-len(begun) > 1 || len(begun) > reconciles/3 {
			t.Errorf("%s: %d requests in %d reconciles: %s", when, len(found), reconciles, count(found))
		}
	}
	measure("at rest")
	e.edit("v2")
	e.awaitPause(1)
	measure("paused in mid-release")
	e.argo("abort", name)
	e.awaitAborted("v1")
	e.mustBeGivenBack()
	measure("aborted")
}

// touched has Argo look at the Rollout again and again, and returns what the plugins ask the API server for meanwhile.
func (e *env) touched(when string, times int) []string {
	e.t.Helper()
	begin, done := e.marker(), e.reconciles()
	for i := range times {
		e.patch(fmt.Sprintf(`{"metadata": {"annotations": {"example.com/touched": "%s-%d-%s"}}}`, when, i, begin))
		e.eventually("Argo has looked again", func(context.Context) error {
			if now := e.reconciles(); now <= done {
				return errors.New("not yet")
			}
			return nil
		})
		done = e.reconciles()
	}
	return e.requests(begin, e.marker())
}

var reconcileCount = regexp.MustCompile(`(?m)^rollout_reconcile_count\{(.*)\} ([0-9.e+]+)$`)

// reconciles is how often the controller has looked at the Rollout.
func (e *env) reconciles() int {
	e.t.Helper()
	request, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, e.cluster.ArgoMetrics(), nil)
	if err != nil {
		e.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	total := 0.0
	for _, match := range reconcileCount.FindAllSubmatch(text, -1) {
		if strings.Contains(string(match[1]), fmt.Sprintf("namespace=%q", e.namespace)) {
			n, _ := strconv.ParseFloat(string(match[2]), 64)
			total += n
		}
	}
	return int(total)
}

// audited is one request that the API server has answered.
type audited struct {
	Stage, Verb, UserAgent, RequestURI string
	User                               struct{ Username string }
	ObjectRef                          struct{ Resource, Subresource, Namespace, Name string }
}

func (a audited) String() string {
	return strings.TrimSuffix(a.Verb+" "+a.ObjectRef.Resource+"/"+a.ObjectRef.Subresource, "/")
}

// marker makes a request that can be found in the audit log.
func (e *env) marker() string {
	e.t.Helper()
	marker := "marker-" + rand.String(10)
	_, _ = e.kube.CoreV1().ConfigMaps(e.namespace).Get(e.t.Context(), marker, metav1.GetOptions{})
	return marker
}

// requests are those that the plugins made for this namespace, and those for none, between two markers. Plugin and
// controller have the same account, and tell themselves apart as user agents.
func (e *env) requests(begin, end string) []string {
	e.t.Helper()
	user := "system:serviceaccount:" + cluster.ArgoNamespace + ":" + cluster.ArgoServiceAccount
	var found []string
	e.eventually("the audit log has the marker", func(context.Context) error {
		raw, err := os.ReadFile(e.cluster.AuditLog())
		if err != nil {
			return err
		}
		_, raw, _ = bytes.Cut(raw, []byte(begin))
		found = nil
		lines := bufio.NewScanner(bytes.NewReader(raw))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if bytes.Contains(lines.Bytes(), []byte(end)) {
				return nil
			}
			var a audited
			if json.Unmarshal(lines.Bytes(), &a) != nil || a.Stage != "ResponseComplete" || a.User.Username != user {
				continue
			}
			if strings.Contains(a.UserAgent, "rollouts-controller") || a.Verb == "watch" {
				continue
			}
			if a.ObjectRef.Namespace == e.namespace || a.ObjectRef.Namespace == "" {
				found = append(found, a.String())
			}
		}
		return errors.New("it has not")
	})
	return found
}

// count says how often each is there.
func count(all []string) string {
	n := map[string]int{}
	for _, one := range all {
		n[one]++
	}
	var out []string
	for _, one := range slices.Sorted(maps.Keys(n)) {
		out = append(out, fmt.Sprintf("%d %s", n[one], one))
	}
	return strings.Join(out, ", ")
}
