// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

const (
	driverNamespace = "lockstep-system"
	driverAccount   = "lockstep-driver"
	driverUser      = "system:serviceaccount:" + driverNamespace + ":" + driverAccount
)

// binaryDir holds the binary until TestMain removes it.
var binaryDir string

// binary builds lockstep once per test binary.
var binary = sync.OnceValues(func() (string, error) {
	var err error
	if binaryDir, err = os.MkdirTemp("", "lockstep-e2e-"); err != nil {
		return "", err
	}
	path := filepath.Join(binaryDir, "lockstep")
	build := exec.Command("go", "build", "-o", path, "github.com/lockstep-rollouts/lockstep/cmd/lockstep")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build lockstep: %w\n%s", err, out)
	}
	return path, nil
})

// driver is `lockstep serve` as a child process, and a client of it.
type driver struct {
	t          testing.TB
	kubeconfig string
	namespace  string // "": all
	dir        string // short: a socket's path has a hundred characters
	args       []string

	*plugin.Client

	cmd    *exec.Cmd
	exited chan struct{}
	log    *os.File
}

// newDriver starts a driver for one namespace, or for all if it is empty, and returns once its caches are filled.
func newDriver(t testing.TB, kubeconfig, namespace string) *driver {
	t.Helper()
	d := prepareDriver(t, kubeconfig, namespace)
	d.start()
	d.awaitSync()
	return d
}

// prepareDriver does not start it.
func prepareDriver(t testing.TB, kubeconfig, namespace string) *driver {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls")
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{t: t, kubeconfig: kubeconfig, namespace: namespace, dir: dir}
	if d.log, err = os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stop()
		if t.Failed() {
			raw, _ := os.ReadFile(d.log.Name())
			t.Logf("log of the driver:\n%s", tail(raw, 200))
		}
		_ = d.log.Close()
		_ = os.RemoveAll(dir)
	})
	return d
}

// start starts the process and connects. The driver may not serve calls yet.
func (d *driver) start() {
	d.t.Helper()
	path, err := binary()
	if err != nil {
		d.t.Fatal(err)
	}
	address := "unix://" + filepath.Join(d.dir, "s")
	args := []string{"serve", "--listen", address, "--kubeconfig", d.kubeconfig}
	if d.namespace != "" {
		args = append(args, "--namespace", d.namespace)
	}
	d.cmd = exec.Command(path, append(args, d.args...)...)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := child.Start(d.cmd); err != nil {
		d.t.Fatal(err)
	}
	figures.starts.Add(1)
	exited, cmd := make(chan struct{}), d.cmd
	d.exited = exited
	go func() { _ = cmd.Wait(); close(exited) }()
	// gRPC waits for a second before it tries again.
	eventually(d.t, "the driver listens", func(context.Context) error {
		_, err := os.Stat(filepath.Join(d.dir, "s"))
		return err
	})
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	d.Client, err = plugin.Dial(ctx, address, plugin.WithWaitForReady(), plugin.WithConnectTimeout(patience),
		plugin.WithDialOptions(grpc.WithUnaryInterceptor(countRPCs)))
	if err != nil {
		d.t.Fatalf("connect to the driver: %v", err)
	}
}

func countRPCs(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	figures.rpcs.Add(1)
	return invoke(ctx, method, req, reply, cc, opts...)
}

// awaitSync returns once the driver answers for the cluster.
func (d *driver) awaitSync() {
	d.t.Helper()
	eventually(d.t, "the driver's caches are filled", func(ctx context.Context) error {
		namespace := d.namespace
		if namespace == "" {
			namespace = "default"
		}
		_, err := d.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{
			Workload: &pb.WorkloadRef{Namespace: namespace, Name: "no-such-workload"},
		})
		if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
			return nil
		}
		return err
	})
}

// kill ends the process the hard way.
func (d *driver) kill() {
	d.t.Helper()
	figures.kills.Add(1)
	d.end(syscall.SIGKILL)
}

// stop ends the process as systemd would.
func (d *driver) stop() { d.end(syscall.SIGTERM) }

func (d *driver) end(sig syscall.Signal) {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(sig)
	select {
	case <-d.exited:
	case <-time.After(20 * time.Second):
		d.t.Errorf("the driver did not end within 20 s of %v", sig)
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
	if d.Client != nil {
		_ = d.Close()
	}
	_ = os.Remove(filepath.Join(d.dir, "s"))
	d.cmd = nil
}

// restart starts it again, with the same address.
func (d *driver) restart() {
	d.t.Helper()
	d.start()
	d.awaitSync()
}

// permissions gives the driver's service account exactly what config/rbac says, and returns its kubeconfig.
func permissions(c *cluster.Cluster) (string, error) {
	ctx := context.Background()
	namespace := fmt.Appendf(nil, "{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", driverNamespace)
	if err := c.Apply(ctx, "", namespace); err != nil {
		return "", err
	}
	for _, file := range []string{"serviceaccount.yaml", "role.yaml", "clusterrolebinding.yaml"} {
		manifest, err := os.ReadFile(filepath.Join("..", "..", "config", "rbac", file))
		if err != nil {
			return "", err
		}
		if err := c.Apply(ctx, driverNamespace, manifest); err != nil {
			return "", err
		}
	}
	return accountKubeconfig(c, driverNamespace, driverAccount)
}

// accountKubeconfig writes a kubeconfig with the rights of a service account.
func accountKubeconfig(c *cluster.Cluster, namespace, name string) (string, error) {
	cfg, err := c.ServiceAccountConfig(context.Background(), namespace, name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.Dir(), "driver-"+namespace+"-"+name+".kubeconfig")
	return path, cluster.WriteKubeconfig(cfg, path)
}

// kubeconfigs holds the driver's kubeconfig of each cluster.
var kubeconfigs struct {
	sync.Mutex
	all map[*cluster.Cluster]string
}

func driverKubeconfig(t testing.TB, c *cluster.Cluster) string {
	t.Helper()
	kubeconfigs.Lock()
	defer kubeconfigs.Unlock()
	if path, ok := kubeconfigs.all[c]; ok {
		return path
	}
	path, err := permissions(c)
	if err != nil {
		t.Fatal(errors.Join(errors.New("set the driver's permissions up"), err))
	}
	if kubeconfigs.all == nil {
		kubeconfigs.all = map[*cluster.Cluster]string{}
	}
	kubeconfigs.all[c] = path
	return path
}
