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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/kruise/install"
)

//go:embed workload.yaml
var workload []byte

const (
	namespace = "default"
	name      = "vllm"
	patience  = 2 * time.Minute
)

// stage is what the scenes share.
type stage struct {
	script script
	out    io.Writer

	cluster *cluster.Cluster
	core    kubernetes.Interface
	sets    lwsclient.Interface
	address string
	driver  *exec.Cmd
	// requests is nil without traffic, and until they flow.
	requests *requests
}

func (s *stage) raise(ctx context.Context) error {
	options := []cluster.Option{cluster.WithLog(s.out)}
	if s.script.traffic {
		options = append(options, cluster.WithTraefik())
	}
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
	s.cluster = c
	if s.core, err = kubernetes.NewForConfig(c.RESTConfig()); err != nil {
		return err
	}
	s.sets, err = lwsclient.NewForConfig(c.RESTConfig())
	return err
}

func (s *stage) deploy(ctx context.Context) error {
	manifest := workload
	if s.script.traffic {
		manifest = graceful(manifest)
	}
	if err := s.cluster.Apply(ctx, namespace, manifest); err != nil {
		return err
	}
	start := time.Now()
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		w, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && w.Status.ReadyReplicas == *w.Spec.Replicas, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the groups of %s: %w", name, err)
	}
	fmt.Fprintf(s.out, "all groups ready after %s\n", time.Since(start).Round(100*time.Millisecond))
	return nil
}

func (s *stage) serve(ctx context.Context) error {
	manifest, err := config.RBAC()
	if err != nil {
		return err
	}
	if err := s.cluster.Apply(ctx, config.Namespace, manifest); err != nil {
		return err
	}
	socket := filepath.Join(s.cluster.Dir(), "lockstep.sock")
	s.address = "unix://" + socket
	log, err := s.start(ctx, config.ServiceAccount, "serve", "--listen", s.address)
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

// start starts Lockstep with the rights of one of its service accounts, and tells where its log is.
func (s *stage) start(ctx context.Context, account string, args ...string) (log string, err error) {
	cfg, err := s.cluster.ServiceAccountConfig(ctx, config.Namespace, account)
	if err != nil {
		return "", err
	}
	kubeconfig := filepath.Join(s.cluster.Dir(), "driver.kubeconfig")
	if err := cluster.WriteKubeconfig(cfg, kubeconfig); err != nil {
		return "", err
	}
	file, err := os.Create(filepath.Join(s.cluster.Dir(), "driver.log"))
	if err != nil {
		return "", err
	}
	defer file.Close()
	s.driver = exec.Command(s.script.lockstep, append(args, "--kubeconfig", kubeconfig)...)
	s.driver.Stderr = file
	return file.Name(), child.Start(s.driver)
}

func (s *stage) adopt(ctx context.Context) error { return s.lockstep(ctx, "adopt", name) }

func (s *stage) edit(ctx context.Context) error {
	old := s.pods(ctx)
	patch := []byte(`[
	  {"op":"replace","path":"/spec/leaderWorkerTemplate/leaderTemplate/spec/containers/0/image","value":"registry.example/vllm-server:llama-4-70b"},
	  {"op":"replace","path":"/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":"registry.example/vllm-worker:llama-4-70b"}]`)
	w, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).
		Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		now, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && now.Status.ObservedGeneration >= w.Generation, nil
	})
	if err != nil {
		return fmt.Errorf("wait for LeaderWorkerSet to see the change: %w", err)
	}
	if s.pods(ctx) != old {
		return errors.New("groups moved although they are held")
	}
	fmt.Fprintf(s.out, "%s -> %s; pods unchanged\n", "llama-3-70b", "llama-4-70b")
	return nil
}

// pods are the workload's pods and images, as text.
func (s *stage) pods(ctx context.Context) string {
	list, err := s.core.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: lws.SetNameLabelKey + "=" + name})
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
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return "ready"
		}
	}
	return "not ready"
}

func (s *stage) release(ctx context.Context) error {
	args := []string{"release", name, "--style", s.script.style, "--batches", s.script.batches, "--pause", s.script.pause}
	if s.requests != nil {
		return s.releaseUnderLoad(ctx, append(args, "--service", name+"-leader", "--http-route", name))
	}
	return s.lockstep(ctx, args...)
}

func (s *stage) summary(ctx context.Context) error {
	if err := s.lockstep(ctx, "status", name); err != nil {
		return err
	}
	fmt.Fprint(s.out, "\n", s.pods(ctx))
	return s.alone(ctx)
}

// alone says whether there is a LeaderWorkerSet beside the user's.
func (s *stage) alone(ctx context.Context) error {
	all, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(all.Items) != 1 {
		return fmt.Errorf("%d LeaderWorkerSets are left instead of 1", len(all.Items))
	}
	return nil
}

// lockstep runs a command of the product against the driver, as a person would.
func (s *stage) lockstep(ctx context.Context, args ...string) error {
	cmd := s.command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, s.out, os.Stderr
	return cmd.Run()
}

// command says which command it is, and prepares it. It is interrupted when ctx ends.
func (s *stage) command(ctx context.Context, args ...string) *exec.Cmd {
	fmt.Fprintf(s.out, "$ lockstep %s\n", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, s.script.lockstep, append(args, "--namespace", namespace, "--address", s.address)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// close ends the requests, the driver, and then the control plane.
func (s *stage) close() {
	s.requests.close()
	if s.driver != nil && s.driver.Process != nil {
		_ = s.driver.Process.Signal(syscall.SIGTERM)
		_ = s.driver.Wait()
		s.explain()
	}
	if s.cluster != nil {
		s.cluster.Stop()
	}
}

// explain shows the end of the driver's log if it has anything to complain about.
func (s *stage) explain() {
	f, err := os.Open(filepath.Join(s.cluster.Dir(), "driver.log"))
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
