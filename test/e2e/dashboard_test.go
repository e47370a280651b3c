// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/browser"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

var updateImages = flag.Bool("update", false, "write the screenshot of docs/images")

// dashboard starts `lockstep dashboard` until the test ends, with a kubeconfig in its environment, and returns the URL that it prints.
func (e *env) dashboard(kubeconfig string, args ...string) string {
	e.t.Helper()
	path := driver.Path(e.t)
	cmd := exec.Command(path, append([]string{"dashboard"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	out, err := cmd.StdoutPipe()
	require.NoError(e.t, err)
	var errs strings.Builder
	cmd.Stderr = &errs
	require.NoError(e.t, child.Start(cmd))
	url, err := bufio.NewReader(out).ReadString('\n')
	e.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			e.t.Errorf("the dashboard ended with %v:\n%s", err, errs.String())
		}
	})
	require.NoError(e.t, err, "the dashboard printed no URL")
	return strings.TrimSpace(url)
}

// mustBeInert fails if the page made an element or ran a script of what the cluster sent.
func mustBeInert(t *testing.T, p *browser.Page) {
	t.Helper()
	n := browser.Eval[int](p, "document.querySelectorAll('img, iframe, body script').length")
	assert.Zero(t, n, "%d elements were injected", n)
	assert.Contains(t, browser.Eval[string](p, "document.title"), "Lockstep", "an injected script ran: title")
	assert.Empty(t, p.Console(), "console")
}

// hostile is markup that runs a script where it becomes HTML. An image may have it, and so may a message.
const hostile = "<img/src=x/onerror=document.title=1>"

// mustGrow fails if the drawing of a running release does not grow: its first batch takes ever less of the width.
func mustGrow(t *testing.T, p *browser.Page) {
	t.Helper()
	const width = "document.querySelector('#timeline .band').getBoundingClientRect().width"
	before := browser.Eval[float64](p, width)
	await.Nil(t, "the drawing grows", func(context.Context) error {
		if now := browser.Eval[float64](p, width); now >= before {
			return fmt.Errorf("the first batch has %f pixels, and had %f", now, before)
		}
		return nil
	})
}

// mustBeAccessible fails if a screen reader lacks one of these roles and names, or an image has no name.
func mustBeAccessible(t *testing.T, p *browser.Page, want ...string) {
	t.Helper()
	all := p.Accessible()
	for _, w := range want {
		assert.True(t, slices.Contains(all, w), "a screen reader is not told %q of:\n%s", w, strings.Join(all, "\n"))
	}
	assert.False(t, slices.Contains(all, "image: "), "an image has no text")
}

// A user with read-only permissions sees in a browser how a release breaks, recovers and is aborted, and how the next one completes.
//
// Proves (test): `lockstep dashboard` in a headless Chromium: a release over time, layout, links, screen readers; a driver that restarts.
func TestDashboard(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("vllm", 4, 2))
	w.expose()
	viewer := e.viewer()
	url := e.dashboard(viewer, "--namespace", e.namespace, "--link", "Board=https://example.com/?ns={namespace}&workload={name}")
	p := browser.Open(t, url)
	p.ColorScheme("light")
	p.AwaitText("namespace "+e.namespace+": 0 with a release, 1 under hold", "No release is running")
	where := " --namespace " + e.namespace

	w.edit(image("v2"), withBehavior(cluster.BehaviorImagePull))
	routed := quarters()
	routed.ProgressDeadline = seconds(5)
	routed.Traffic = &pb.TrafficPolicy{StableService: "vllm-http", Ingresses: []string{"vllm"}}
	w.initialize("r1", routed)
	_, err := w.tryUpgrade("r1", 0, nil)
	require.NoError(t, err)
	weigh := func(weight int32) {
		t.Helper()
		_, err := w.driver.SetWeight(t.Context(), &pb.SetWeightRequest{Workload: w.ref(), ReleaseId: "r1", Weight: weight})
		require.NoError(t, err)
	}
	weigh(25)
	p.AwaitText(e.namespace+"/vllm", "failed (ProgressDeadlineExceeded)", "1/3 (25%)", "0 of 1 groups ready", "0% of requests, 25% requested", "deadline passed",
		"It is driven by e2e/", "lockstep status vllm"+where)
	p.AwaitAttribute(".groups", "aria-label", "5 groups: 4 stable ready, 1 updated not ready")
	p.AwaitAttribute(".group.B.added", "title", "ImagePullBackOff")
	canary := w.context().GetCanaryWorkload()
	p.AwaitText("vllm, canary 0: pod "+canary+"-0", "kubectl describe pod "+canary+"-0")
	browser.Run(p, chromedp.Click(chromedp.CSS("#banner button")))
	p.AwaitText("Copied: lockstep status vllm" + where)
	p.Resize(500, 900)
	p.Resize(1300, 900)
	heal := func(group int) {
		t.Helper()
		e.eventually("the group's pods exist", func(context.Context) error {
			if pods := len(w.podsOf(canary)); pods != 2*(group+1) {
				return fmt.Errorf("%d pods", pods)
			}
			return nil
		})
		w.patchPods(canary, heal, group)
	}
	heal(0)
	p.AwaitText("ready (BatchReady)", "25% of requests")
	p.AwaitAttribute(".groups", "aria-label", "5 groups: 4 stable ready, 1 updated ready")
	_, err = w.tryUpgrade("r1", 1, nil)
	require.NoError(t, err)
	weigh(50)
	p.AwaitText("failed (ProgressDeadlineExceeded)", "2/3 (50%)")
	p.AwaitAttribute(".group.B:not(.ready)", "title", "ImagePullBackOff")

	// The keyboard opens the workload, and the heading has the focus then.
	browser.Run(p, chromedp.Focus(chromedp.CSS("#workloads a")))
	browser.Run(p, chromedp.KeyEvent(kb.Enter))
	p.AwaitText("Second workload", canary, "ImagePullBackOff", "5 ready of 4 requested, 6 exist", "server=example.com/model:v2", "e2e/TestDashboard",
		"Changes of the template, from revision 1 to 2", "image: example.com/model:v2", "canary 0: ready")
	focus := browser.Eval[string](p, "document.activeElement.textContent")
	assert.Equal(t, e.namespace+"/vllm", focus, "the focus is on %q", focus)
	p.AwaitAttribute("#links a", "href", "https://example.com/?ns="+e.namespace+"&workload=vllm")
	p.AwaitAttribute("#timeline svg", "aria-label", "Timeline of release r1: ", "batch 1/3 (25%) from ", "batch 2/3 (50%) from ", "6 groups: 4 stable ready, 1 updated")
	mustGrow(t, p)
	mustBeAccessible(t, p, "banner: ", "main: ", "contentinfo: ", "navigation: Workload", "alert: What is wrong", "heading: "+e.namespace+"/vllm", "heading: Timeline",
		"table: Groups", "columnheader: Status", "table: History", "region: Changes of the template, from revision 1 to 2", "progressbar: 1 of 2 groups ready")
	if *updateImages {
		p.Resize(1000, 900)
		browser.Eval[any](p, "document.querySelectorAll('#legend ~ *, #now ~ *, footer').forEach(e => { e.hidden = true })")
		p.Screenshot("../../docs/images/dashboard.png")
		browser.Eval[any](p, "document.querySelectorAll('#legend ~ *, #now ~ *, footer').forEach(e => { e.hidden = false })")
	}
	browser.Run(p, chromedp.Reload())
	p.AwaitAttribute("#timeline svg", "aria-label", "batch 1/3 (25%) from ")
	p.Resize(500, 900)
	p.Resize(1300, 900)
	heal(1)
	p.AwaitText("ready (BatchReady)", "2 of 2 groups ready")
	assert.False(t, browser.Eval[bool](p, "!document.getElementById('banner').hidden"), "the groups are ready, and something is wrong")
	_, err = w.driver.Finalize(t.Context(), &pb.FinalizeRequest{
		Workload: w.ref(), ReleaseId: "r1", Intent: rollback, Message: hostile, Wait: long,
	})
	require.NoError(t, err)
	p.AwaitText("rolled back (", "Why\n"+hostile, "rolled back by")
	mustBeInert(t, p)

	w.edit(image("v3"+hostile), func(s *lws.LeaderWorkerSet) {
		delete(s.Spec.LeaderWorkerTemplate.WorkerTemplate.Annotations, cluster.AnnotationBehavior)
	})
	w.initialize("r2", policy("50%", "100%"))
	w.upgrade("r2", 0)
	p.AwaitText("server=example.com/model:v3"+hostile, "from revision 1 to 3", "image: example.com/model:v3"+hostile)
	mustBeInert(t, p)
	browser.Run(p, chromedp.NavigateBack())
	p.AwaitText("ready (BatchReady)", "1/2 (50%)", "33% of ready groups")
	w.finalize("r2", promote)
	p.AwaitText("completed (")
	p.AwaitAttribute(".groups", "aria-label", "4 groups: 4 updated ready")
	announced := browser.Eval[string](p, "document.getElementById('announcement').textContent")
	assert.Equal(t, e.namespace+"/vllm: completed", announced, "a screen reader is told %q", announced)
	mustBeInert(t, p)
	past := browser.Open(t, url+"#/"+e.namespace+"/vllm?revision=2")
	past.AwaitText("vllm, revision 2", "rolled back by", hostile, "Took", "from revision 1 to 2")
	mustBeInert(t, past)
	p.ColorScheme("dark")
	assert.False(t, browser.Eval[bool](p, "getComputedStyle(document.querySelector('.group.B.ready')).color === 'rgb(255, 255, 255)'"),
		"dark mode has the colours of light mode")
	w.mustBeIdle()

	_, stderr, code := e.run("dashboard", "-A", "--kubeconfig", viewer)
	assert.True(t, code == 1 && strings.Contains(stderr, "[FORBIDDEN]"), "all namespaces with the permissions of one: %d\n%s", code, stderr)
}

// The page reports that the driver is down, and continues once it has restarted.
//
// Proves (test): `lockstep dashboard` in a headless Chromium: a release over time, layout, links, screen readers; a driver that restarts.
func TestDashboardDriver(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("vllm", 2, 1))
	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	p := browser.Open(t, e.dashboard("", "--namespace", e.namespace, "--address", e.driver.Address()))
	p.AwaitText("holding (")
	e.driver.Kill()
	p.AwaitText("The driver has not answered since", "Retrying", "holding (")
	e.driver.Restart()
	w.upgrade("r1", 0)
	p.AwaitText("ready (BatchReady)", "1/2 (50%)")
	assert.True(t, browser.Eval[bool](p, "document.getElementById('problem').hidden"), "the driver has restarted, and is reported as lost")
	w.finalize("r1", rollback)
	w.mustBeIdle()
}

// The page of a DisaggregatedSet, after a night without the driver, with words that are wider than the window.
//
// Proves (test): `lockstep dashboard` in a headless Chromium: a release over time, layout, links, screen readers; a driver that restarts.
func TestDashboardPage(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200)
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir("../../internal/dashboard/web")))
	mux.HandleFunc("/history/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, long, http.StatusBadGateway) })
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, `event: status
data: {"scope":"", "synced":true, "lost":%[1]q, "lostSince":"2026-01-02T12:00:00Z", "links":[["Board","https://example.com/?workload={name}"]]}

event: workload
data: {"key":"ml/disaggregatedset/llm", "running":true, "live":true, "release":%[1]q, "state":"upgrading", "reason":"GroupsNotReady", "message":%[1]q,
data: "since":"2026-01-02T12:00:00Z", "replicas":4, "share":0, "batch":"-", "traffic":"-", "capacity":"-", "groups":[], "facts":[], "history":"1"}

`, long)
		w.(http.Flusher).Flush() //nolint:forcetypeassert // a server's
		<-r.Context().Done()
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.CloseClientConnections)

	p := browser.Open(t, server.URL+"/style.css")
	browser.Eval[any](p, "sessionStorage.setItem('tracks', 'of another program')")
	browser.Run(p, chromedp.Navigate(server.URL+"/#/ml/disaggregatedset/llm"))
	// The label of the metrics is the workload's name with its kind.
	p.AwaitAttribute("#links a", "href", "https://example.com/?workload=disaggregatedset%2Fllm")
	p.AwaitText("has not answered since "+browser.Eval[string](p, "new Date('2026-01-02T12:00:00Z').toLocaleDateString()"), "upgrading", "Release "+long)
	p.Resize(500, 900)
}
