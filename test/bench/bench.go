// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	lockstepconfig "github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// namespace holds all workloads.
const namespace = "bench"

// bench is one run: a control plane, the binary, and a kubeconfig with the driver's permissions of config/base.
type bench struct {
	config
	cluster    *cluster.Cluster
	kube       kubernetes.Interface
	sets       lwsclient.Interface
	root       string // of the repository
	dir        string
	binary     string
	kubeconfig string
	log        io.Writer

	controllersStopped bool
}

func newBench(ctx context.Context, c config, log io.Writer) (*bench, error) {
	b := &bench{config: c, log: log}
	var err error
	if b.dir, err = os.MkdirTemp("", "lockstep-bench-"); err != nil {
		return nil, fmt.Errorf("create folder: %w", err)
	}
	if err := b.prepare(ctx); err != nil {
		b.stop()
		return nil, err
	}
	return b, nil
}

func (b *bench) prepare(ctx context.Context) error {
	var err error
	if b.root, err = moduleRoot(ctx); err != nil {
		return err
	}
	b.binary = filepath.Join(b.dir, "lockstep")
	b.logf("building cmd/lockstep")
	return command(ctx, b.root, "go", "build", "-o", b.binary, "./cmd/lockstep")
}

// renew starts a control plane for one part, in place of that of the last part, whose workloads would count.
func (b *bench) renew(ctx context.Context) error {
	b.lower()
	b.controllersStopped = false
	roomy := cluster.WithNodes(8, corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2000")}) // for the storm
	var err error
	if b.cluster, err = cluster.Start(ctx, roomy, cluster.WithAudit(), cluster.WithLog(b.log)); err != nil {
		return err
	}
	admin := b.cluster.RESTConfig()
	if b.kube, err = kubernetes.NewForConfig(admin); err != nil {
		return fmt.Errorf("make Kubernetes client: %w", err)
	}
	if b.sets, err = lwsclient.NewForConfig(admin); err != nil {
		return fmt.Errorf("make LeaderWorkerSet client: %w", err)
	}
	if err := b.grant(ctx); err != nil {
		return err
	}
	return b.cluster.Settle(ctx)
}

// lower stops the control plane, if it runs.
func (b *bench) lower() {
	if b.cluster != nil {
		b.cluster.Stop()
		b.cluster = nil
	}
}

// grant grants the driver's service account its permissions and writes its kubeconfig.
func (b *bench) grant(ctx context.Context) error {
	manifest, err := lockstepconfig.RBAC()
	if err != nil {
		return err
	}
	manifest = fmt.Appendf(manifest, "\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace)
	if err := b.cluster.Apply(ctx, lockstepconfig.Namespace, manifest); err != nil {
		return err
	}
	account, err := b.cluster.ServiceAccountConfig(ctx, lockstepconfig.Namespace, lockstepconfig.ServiceAccount)
	if err != nil {
		return err
	}
	b.kubeconfig = filepath.Join(b.dir, "driver.kubeconfig")
	return cluster.WriteKubeconfig(account, b.kubeconfig)
}

func (b *bench) stop() {
	b.lower()
	_ = os.RemoveAll(b.dir)
}

func (b *bench) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.log, "bench: "+format+"\n", args...)
}

// moduleRoot is the folder of the module that is measured: the one above that of the tests.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find go.mod: %w", err)
	}
	path := strings.TrimSpace(string(out))
	if path == "" || path == os.DevNull {
		return "", errors.New("find go.mod: run this inside Lockstep's repository")
	}
	return filepath.Dir(filepath.Dir(path)), nil
}

func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
