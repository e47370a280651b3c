// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/browser"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

var updateImages = flag.Bool("update", false, "write the screenshot of docs/images")

// dashboard starts `lockstep dashboard` until the test ends, and returns the URL that it prints.
func (e *env) dashboard(args ...string) string {
	e.t.Helper()
	path, err := driver.Binary()
	if err != nil {
		e.t.Fatal(err)
	}
	cmd := exec.Command(path, append([]string{"dashboard"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := child.Start(cmd); err != nil {
		e.t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	e.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			e.t.Errorf("the dashboard ended with %v:\n%s", err, errs.String())
		}
	})
	if err != nil {
		e.t.Fatalf("the dashboard printed no URL: %v", err)
	}
	return strings.TrimSpace(url)
}

// mustBeInert fails if the page made an element or ran a script of what the cluster sent.
func mustBeInert(t *testing.T, p *browser.Page) {
	t.Helper()
	if n := browser.Eval[int](p, "document.querySelectorAll('img, iframe, body script').length"); n != 0 {
		t.Errorf("%d elements were injected", n)
	}
	if title := browser.Eval[string](p, "document.title"); title != "Lockstep releases" {
		t.Errorf("an injected script ran: title %q", title)
	}
	if console := p.Console(); len(console) > 0 {
		t.Errorf("console: %q", console)
	}
}

// hostile is markup that runs a script where it becomes HTML. An image may have it, and so may a message.
const hostile = "<img/src=x/onerror=document.title=1>"

// A user with read-only permissions sees in a browser how a release breaks, recovers and is aborted, and how the next one completes.
func TestDashboard(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("vllm", 4, 2))
	w.expose()
	viewer := e.viewer()
	p := browser.Open(t, e.dashboard("--namespace", e.namespace, "--kubeconfig", viewer))
	p.ColorScheme("light")
	p.AwaitText("namespace "+e.namespace+": 0 with a release, 1 under hold", "No release is running")

	w.edit(image("v2"), withBehavior(cluster.BehaviorImagePull))
	routed := quarters()
	routed.Traffic = &pb.TrafficPolicy{StableService: "vllm-http", Ingresses: []string{"vllm"}}
	w.initialize("r1", routed)
	if _, err := w.tryUpgrade("r1", 0, nil); err != nil {
		t.Fatal(err)
	}
	weigh := func(weight int32) {
		t.Helper()
		if _, err := w.driver.SetWeight(t.Context(), &pb.SetWeightRequest{Workload: w.ref(), ReleaseId: "r1", Weight: weight}); err != nil {
			t.Fatal(err)
		}
	}
	weigh(25)
	p.AwaitText(e.namespace+"/vllm", "upgrading", "1/3 (25%)", "0% of requests, 25% requested", "4 ready of 4 requested, 5 exist", "in ")
	p.AwaitAttribute(".groups", "aria-label", "5 groups: 4 stable ready, 1 updated not ready")
	p.AwaitAttribute(".group.B.added", "title", "ImagePullBackOff")
	canary := w.context().GetCanaryWorkload()
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
	if _, err := w.tryUpgrade("r1", 1, nil); err != nil {
		t.Fatal(err)
	}
	weigh(50)
	p.AwaitText("upgrading", "2/3 (50%)", "5 ready of 4 requested, 6 exist")
	p.AwaitAttribute(".group.B:not(.ready)", "title", "ImagePullBackOff")
	if *updateImages {
		p.Screenshot("../../docs/images/dashboard.png")
	}

	// The keyboard opens the workload, and the heading has the focus then.
	browser.Run(p, chromedp.Focus(chromedp.CSS("#workloads a")))
	browser.Run(p, chromedp.KeyEvent(kb.Enter))
	p.AwaitText("Second workload", canary, "ImagePullBackOff", "server=example.com/model:v2", "r1 by e2e/TestDashboard")
	if focus := browser.Eval[string](p, "document.activeElement.textContent"); focus != e.namespace+"/vllm" {
		t.Errorf("the focus is on %q", focus)
	}
	heal(1)
	p.AwaitText("ready (BatchReady)", "2 planned, 2 updated, 2 ready")
	if _, err := w.driver.Finalize(t.Context(), &pb.FinalizeRequest{
		Workload: w.ref(), ReleaseId: "r1", Intent: rollback, Message: hostile, Wait: long,
	}); err != nil {
		t.Fatal(err)
	}
	p.AwaitText("rolled back (", "Why\n"+hostile, "rolled back by")
	mustBeInert(t, p)

	w.edit(image("v3"+hostile), func(s *lws.LeaderWorkerSet) {
		delete(s.Spec.LeaderWorkerTemplate.WorkerTemplate.Annotations, cluster.AnnotationBehavior)
	})
	w.initialize("r2", policy("50%", "100%"))
	w.upgrade("r2", 0)
	p.AwaitText("server=example.com/model:v3" + hostile)
	mustBeInert(t, p)
	browser.Run(p, chromedp.NavigateBack())
	p.AwaitText("ready (BatchReady)", "1/2 (50%)", "33% of ready groups")
	w.finalize("r2", promote)
	p.AwaitText("completed (", "4 ready of 4 requested, 4 exist")
	p.AwaitAttribute(".groups", "aria-label", "4 groups: 4 updated ready")
	if announced := browser.Eval[string](p, "document.getElementById('announcement').textContent"); announced != e.namespace+"/vllm: completed" {
		t.Errorf("a screen reader is told %q", announced)
	}
	mustBeInert(t, p)
	p.ColorScheme("dark")
	if light := browser.Eval[bool](p, "getComputedStyle(document.querySelector('.group.B.ready')).color === 'rgb(255, 255, 255)'"); light {
		t.Error("dark mode has the colours of light mode")
	}
	w.mustBeIdle()

	path, err := driver.Binary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "dashboard", "-A", "--kubeconfig", viewer).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "[FORBIDDEN]") {
		t.Errorf("all namespaces with the permissions of one: %v\n%s", err, out)
	}
}

// The page reports that the driver is down, and continues once it has restarted.
func TestDashboardDriver(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("vllm", 2, 1))
	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	p := browser.Open(t, e.dashboard("--namespace", e.namespace, "--address", e.driver.Address()))
	p.AwaitText("holding (")
	e.driver.Kill()
	p.AwaitText("The driver does not answer since", "retrying", "holding (")
	e.driver.Restart()
	w.upgrade("r1", 0)
	p.AwaitText("ready (BatchReady)", "1/2 (50%)")
	if hidden := browser.Eval[bool](p, "document.getElementById('problem').hidden"); !hidden {
		t.Error("the driver has restarted, and is reported as lost")
	}
	w.finalize("r1", rollback)
	w.mustBeIdle()
}
