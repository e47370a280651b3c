// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/kruise/install"
	"github.com/lockstep-rollouts/lockstep/test/node"
)

//go:embed workload.yaml
var workload []byte

const (
	name     = "vllm"
	oldModel = "llama-3-70b" // as in workload.yaml
	newModel = "llama-4-70b"
	patience = 2 * time.Minute
)

// stage is the state of the demo.
type stage struct {
	script script
	out    io.Writer

	// cluster is nil before it runs.
	cluster *cluster.Cluster
	// namespace is the workload's; dir has the driver's socket, kubeconfig and log.
	namespace, dir string

	core    kubernetes.Interface
	sets    lwsclient.Interface
	address string
	driver  *exec.Cmd
	// requests is nil without traffic, and before they start.
	requests *requests
}

func (s *stage) raise(ctx context.Context) error {
	options := append(s.script.options(), cluster.WithLog(s.out))
	switch s.script.host {
	case "argo":
		options = append(options, cluster.WithArgo(s.plugin))
	case "kruise":
		options = append(options, cluster.WithGatewayAPI(), cluster.WithKruise(install.DriverInside))
	}
	c, err := cluster.Start(ctx, options...)
	if err != nil {
		return err
	}
	s.cluster, s.namespace, s.dir = c, metav1.NamespaceDefault, c.Dir()
	return s.connect(c.RESTConfig())
}

// connect makes the clients of a cluster.
func (s *stage) connect(config *rest.Config) (err error) {
	if s.core, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	s.sets, err = lwsclient.NewForConfig(config)
	return err
}

func (s *stage) deploy(ctx context.Context) error {
	if err := s.create(ctx); err != nil {
		return err
	}
	start := time.Now()
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		w, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(s.namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && w.Status.ReadyReplicas == *w.Spec.Replicas, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the groups of %s: %w%s", name, err, s.unready())
	}
	fmt.Fprintf(s.out, "all groups ready after %s\n", time.Since(start).Round(100*time.Millisecond))
	return nil
}

// create creates the workload.
func (s *stage) create(ctx context.Context) error {
	switch {
	case s.script.node:
		return s.createOnNode(ctx)
	case s.script.kubeconfig != "":
		return s.createPausing(ctx)
	}
	manifest := workload
	if s.script.traffic {
		manifest = graceful(manifest)
	}
	return s.cluster.Apply(ctx, s.namespace, manifest)
}

// createOnNode creates a workload of containers.
func (s *stage) createOnNode(ctx context.Context) error {
	if err := node.Push(ctx, s.cluster, oldModel, newModel); err != nil {
		return err
	}
	w, err := node.Workload(name, 4, node.Image(s.cluster, oldModel))
	if err != nil {
		return err
	}
	_, err = s.sets.LeaderworkersetV1().LeaderWorkerSets(s.namespace).Create(ctx, w, metav1.CreateOptions{})
	return err
}

// unready returns the cluster's reasons why pods are not ready, or "" without any.
func (s *stage) unready() string {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	list, err := s.core.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: lws.SetNameLabelKey + "=" + name})
	if err != nil {
		return ""
	}
	var b strings.Builder
	for i := range list.Items {
		p := &list.Items[i]
		for _, c := range p.Status.ContainerStatuses {
			if waiting := c.State.Waiting; waiting != nil {
				fmt.Fprintf(&b, "\n  pod %s: %s: %s", p.Name, waiting.Reason, waiting.Message)
			}
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				fmt.Fprintf(&b, "\n  pod %s: %s: %s", p.Name, c.Reason, c.Message)
			}
		}
	}
	return b.String()
}

func (s *stage) serve(ctx context.Context) error { return s.serveWith(ctx, s.startWithRBAC) }

// serveWith starts a server on a unix socket, and waits until it listens.
func (s *stage) serveWith(ctx context.Context, start func(ctx context.Context, args ...string) (log string, err error)) error {
	socket := filepath.Join(s.dir, "lockstep.sock")
	s.address = "unix://" + socket
	args := []string{"serve", "--listen", s.address}
	log, err := start(ctx, args...)
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		_, err := os.Stat(socket)
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the driver (its log is %s): %w", log, err)
	}
	fmt.Fprintf(s.out, "lockstep serve --listen %s\n", s.address)
	return nil
}

// startWithRBAC applies config/base to the demo's control plane, and starts Lockstep with its account.
func (s *stage) startWithRBAC(ctx context.Context, args ...string) (log string, err error) {
	if err := s.cluster.ApplyConfig(ctx, config.Namespace, deploy.RBAC); err != nil {
		return "", err
	}
	return s.start(ctx, config.ServiceAccount, args...)
}

// start starts Lockstep with one of its service accounts, and returns the path of its log.
func (s *stage) start(ctx context.Context, account string, args ...string) (log string, err error) {
	cfg, err := s.cluster.ServiceAccountConfig(ctx, config.Namespace, account)
	if err != nil {
		return "", err
	}
	if err := awaitRights(ctx, cfg); err != nil {
		return "", err
	}
	kubeconfig := s.driverKubeconfig()
	if err := cluster.WriteKubeconfig(cfg, kubeconfig); err != nil {
		return "", err
	}
	return s.startWith(kubeconfig, args...)
}

// awaitRights waits until an account has the driver's permissions: Kubernetes aggregates the role a moment after it is created.
func awaitRights(ctx context.Context, account *rest.Config) error {
	kube, err := kubernetes.NewForConfig(account)
	if err != nil {
		return err
	}
	right := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: "autoscaling", Resource: "horizontalpodautoscalers"},
	}}
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		review, err := kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, right, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed, nil
	}); err != nil {
		return fmt.Errorf("wait for the driver's permissions: %w", err)
	}
	return nil
}

func (s *stage) driverKubeconfig() string { return filepath.Join(s.dir, "driver.kubeconfig") }

func (s *stage) driverLog() string { return filepath.Join(s.dir, "driver.log") }

// startWith starts Lockstep with a kubeconfig, and returns the path of its log.
func (s *stage) startWith(kubeconfig string, args ...string) (log string, err error) {
	file, err := os.Create(s.driverLog())
	if err != nil {
		return "", err
	}
	defer file.Close()
	s.driver = exec.Command(s.script.lockstep, append(args, "--kubeconfig", kubeconfig)...)
	s.driver.Stderr = file
	// Ctrl-C on the terminal must not end it: the demo stops it, and shows its warnings.
	s.driver.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return file.Name(), child.Start(s.driver)
}

func (s *stage) adopt(ctx context.Context) error { return s.lockstep(ctx, "adopt", name) }

func (s *stage) edit(ctx context.Context) error {
	old := s.pods(ctx)
	before, after := oldModel, newModel
	leader, worker := "registry.example/vllm-server:"+newModel, "registry.example/vllm-worker:"+newModel
	switch {
	case s.script.node:
		leader, worker = node.Image(s.cluster, newModel), node.Image(s.cluster, newModel)
	case s.script.kubeconfig != "":
		before, after, leader, worker = oldPause, newPause, newPause, newPause
	}
	patch := fmt.Appendf(nil, `[
	  {"op":"replace","path":"/spec/leaderWorkerTemplate/leaderTemplate/spec/containers/0/image","value":%q},
	  {"op":"replace","path":"/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":%q}]`, leader, worker)
	w, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(s.namespace).
		Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		now, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(s.namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && now.Status.ObservedGeneration >= w.Generation, nil
	})
	if err != nil {
		return fmt.Errorf("wait for LeaderWorkerSet to observe the change: %w", err)
	}
	if s.pods(ctx) != old {
		return errors.New("groups moved although they are under hold")
	}
	fmt.Fprintf(s.out, "%s -> %s; pods unchanged\n", before, after)
	return nil
}

// pods returns the workload's pods and images, as text.
func (s *stage) pods(ctx context.Context) string {
	list, err := s.core.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: lws.SetNameLabelKey + "=" + name})
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for i := range list.Items {
		p := &list.Items[i]
		fmt.Fprintf(&b, "%-10s %s %s\n", p.Name, p.Spec.Containers[0].Image, phase(p))
	}
	return b.String()
}

func phase(p *corev1.Pod) string {
	if grouptags.Ready(p) {
		return "ready"
	}
	return "not ready"
}

func (s *stage) release(ctx context.Context) error {
	args := s.releaseArgs(name)
	if s.requests != nil {
		return s.releaseUnderLoad(ctx, append(args, "--service", name+"-leader", "--http-route", name))
	}
	return s.lockstep(ctx, args...)
}

// releaseArgs are those of the release of a workload.
func (s *stage) releaseArgs(workload string) []string {
	args := []string{"release", workload, "--style", s.script.style, "--pause", s.script.pause}
	if s.script.batches != "" {
		args = append(args, "--batches", s.script.batches)
	}
	return args
}

func (s *stage) summary(ctx context.Context) error {
	if err := s.lockstep(ctx, "status", name); err != nil {
		return err
	}
	fmt.Fprint(s.out, "\n", s.pods(ctx))
	return s.alone(ctx)
}

// alone returns an error if there is a LeaderWorkerSet beside the user's.
func (s *stage) alone(ctx context.Context) error {
	all, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(all.Items) != 1 {
		return fmt.Errorf("%d LeaderWorkerSets are left instead of 1", len(all.Items))
	}
	return nil
}

// lockstep runs a lockstep command with the driver's address.
func (s *stage) lockstep(ctx context.Context, args ...string) error {
	cmd := s.command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, s.out, os.Stderr
	return cmd.Run()
}

// command prints a command and returns it. It is interrupted when ctx ends.
func (s *stage) command(ctx context.Context, args ...string) *exec.Cmd {
	fmt.Fprintf(s.out, "$ lockstep %s\n", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, s.script.lockstep, append(args, "--namespace", s.namespace, "--address", s.address)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// close stops the requests, the driver and the control plane.
func (s *stage) close() {
	s.requests.close()
	s.giveBack()
	s.stopDriver()
	if s.cluster != nil {
		s.cluster.Stop()
	} else if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// stopDriver stops the driver and shows warnings of its log.
func (s *stage) stopDriver() {
	if s.driver == nil || s.driver.Process == nil {
		return
	}
	_ = s.driver.Process.Signal(syscall.SIGTERM)
	_ = s.driver.Wait()
	s.showWarnings()
}

// showWarnings shows the warnings and errors of the driver's log.
func (s *stage) showWarnings() {
	f, err := os.Open(s.driverLog())
	if err != nil {
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if line := lines.Text(); strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			fmt.Fprintln(s.out, "driver:", line)
		}
	}
}
