// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/tlstest"
)

// ErrStopped is returned by methods that need a running cluster after it was stopped.
var ErrStopped = errors.New("the cluster is stopped")

// Cluster is a running control plane. Its methods may be called from several goroutines.
type Cluster struct {
	options options
	dir     string
	ca      *tlstest.Authority
	owned   io.Closer
	ports   ports
	port    portMap
	// registry serves images to the nodes, if there are kubelets.
	registry *http.Server
	admin    *rest.Config
	kube     kubernetes.Interface
	applier  *applier

	mu         sync.Mutex
	components map[string]component
	running    map[string]*process
	stopped    bool
	keep       bool
	err        error

	done     chan struct{}
	stopOnce sync.Once
}

// Start builds missing programs, starts a cluster and waits until it is ready: API server up, controllers running, nodes Ready, LWS
// webhooks serving. The cluster runs until Stop, until ctx ends or until this process dies. If a component dies or is not ready in
// time, the error has the end of its log and the directory is kept. If ctx ends before, nothing is left.
func Start(ctx context.Context, opts ...Option) (*Cluster, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	if err := o.build(ctx, o.log); err != nil {
		return nil, err
	}
	begin := time.Now()
	c, err := newCluster(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := c.boot(ctx); err != nil {
		if ctx.Err() == nil {
			c.KeepDir()
		}
		c.Stop()
		return nil, fmt.Errorf("start cluster in %s: %w", c.dir, err)
	}
	c.logf("ready after %s", time.Since(begin).Round(10*time.Millisecond))
	context.AfterFunc(ctx, c.Stop)
	return c, nil
}

// newCluster prepares directory, ports and certificates.
func newCluster(ctx context.Context, o options) (*Cluster, error) {
	c := &Cluster{
		options:    o,
		components: map[string]component{},
		running:    map[string]*process{},
		done:       make(chan struct{}),
		keep:       o.keepDir,
	}
	var err error
	if c.dir, c.owned, err = makeDir(o.dir); err != nil {
		return nil, err
	}
	c.logf("starting in %s", c.dir)
	if err := c.prepare(ctx); err != nil {
		c.ports.release()
		_ = c.owned.Close()
		_ = os.RemoveAll(c.dir)
		return nil, fmt.Errorf("prepare cluster: %w", err)
	}
	return c, nil
}

func (c *Cluster) prepare(ctx context.Context) error {
	taken, err := c.ports.take(ctx, portCount+2*c.options.kubelets)
	if err != nil {
		return err
	}
	c.port = newPortMap(taken)
	if c.ca, err = tlstest.NewAuthority(); err != nil {
		return err
	}
	if err := os.Mkdir(c.path("log"), 0o700); err != nil {
		return fmt.Errorf("create log directory: %w", err)
	}
	if err := c.writeCredentials(); err != nil {
		return err
	}
	if c.admin, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	c.admin.QPS, c.admin.Burst = 1000, 2000
	if c.kube, err = kubernetes.NewForConfig(c.admin); err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	c.applier, err = newApplier(c.admin)
	return err
}

// boot starts the components: etcd, then the API server, then all others concurrently. The garbage collector discovers kinds at
// startup and every 30 s, so all kinds are installed before it.
func (c *Cluster) boot(ctx context.Context) error {
	for _, comp := range []component{etcdComponent, apiServerComponent} {
		if err := c.start(ctx, comp); err != nil {
			return err
		}
	}
	if err := c.Apply(ctx, "", kwokPolicy); err != nil {
		return err
	}
	if err := c.ApplyConfig(ctx, "", c.options.manifests...); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.start(ctx, schedulerComponent) })
	g.Go(func() error { return c.bootNodes(ctx) })
	g.Go(func() error {
		if err := c.installKinds(ctx); err != nil {
			return err
		}
		if c.options.lws {
			g.Go(func() error { return c.run(ctx, lwsComponent) })
		}
		if c.options.traefik {
			g.Go(func() error { return c.run(ctx, traefikComponent) })
		}
		if c.options.argo {
			g.Go(func() error { return c.bootArgo(ctx) })
		}
		if c.options.kruise {
			g.Go(func() error { return c.bootKruise(ctx) })
		}
		return c.start(ctx, controllerManagerComponent)
	})
	return g.Wait()
}

// installKinds installs the kinds that are not part of Kubernetes.
func (c *Cluster) installKinds(ctx context.Context) error {
	g, together := errgroup.WithContext(ctx)
	if c.options.lws {
		g.Go(func() error { return c.install(together, lwsComponent) })
	}
	if c.options.gateway {
		g.Go(func() error { return c.installGatewayAPI(together) })
	}
	if c.options.argo {
		g.Go(func() error { return c.installArgoKinds(together) })
	}
	if c.options.kruise {
		g.Go(func() error { return c.installKruiseKinds(together) })
	}
	if err := g.Wait(); err != nil || !c.options.traefik {
		return err
	}
	return c.install(ctx, traefikComponent)
}

// Versions returns the versions of the programs that the cluster runs or can install.
func (c *Cluster) Versions() Versions { return c.options.versions }

// Done returns a channel that is closed when the cluster is stopped or a component has died.
func (c *Cluster) Done() <-chan struct{} { return c.done }

// Err returns why the cluster does not work any more: a component that died, with the end of its log, or ErrStopped. It returns nil
// while the cluster works.
func (c *Cluster) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail records the first reason why the cluster does not work any more.
func (c *Cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.done)
	if !errors.Is(err, ErrStopped) {
		c.keep = true
		c.logf("%v", err)
	}
}

// KeepDir makes Stop keep the cluster's directory with all logs.
func (c *Cluster) KeepDir() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep = true
}

// Stop stops all processes, the API server before etcd, kills those that do not exit within a few seconds, and removes the directory
// unless it is kept. It returns when all processes have exited. It may be called more than once.
func (c *Cluster) Stop() {
	c.stopOnce.Do(func() {
		c.reportWrites()
		c.mu.Lock()
		c.stopped = true
		c.mu.Unlock()
		c.fail(ErrStopped)
		c.endNodes()
		for _, together := range stopOrder {
			var g errgroup.Group
			for _, name := range together {
				g.Go(func() error {
					c.end(name, nil)
					return nil
				})
			}
			_ = g.Wait()
		}
		c.ports.release()
		c.removeDir()
		_ = c.owned.Close()
	})
}

// end stops a component, if it runs.
func (c *Cluster) end(name string, hurry <-chan struct{}) {
	c.mu.Lock()
	p, ok := c.running[name]
	delete(c.running, name)
	c.mu.Unlock()
	if !ok {
		return
	}
	p.stop(hurry)
	if name == Argo {
		c.endPlugins()
	}
}

func (c *Cluster) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(c.options.log, "cluster: "+format+"\n", args...)
}

// tokenLifetime outlives any test run.
const tokenLifetime = 24 * time.Hour

// Kubeconfig returns the path of a self-contained kubeconfig for a cluster administrator.
func (c *Cluster) Kubeconfig() string { return c.path("admin.kubeconfig") }

// RESTConfig returns a client configuration for a cluster administrator, practically without client-side throttling. The caller
// owns the copy.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// Dir returns the cluster's directory. It has the kubeconfigs, certificates, data and, in log/, each component's output.
func (c *Cluster) Dir() string { return c.dir }

// AuditLog returns the path of the API server's audit log, JSON lines of level Metadata, or "" without [WithAudit].
func (c *Cluster) AuditLog() string {
	if !c.options.audit {
		return ""
	}
	return c.path("audit.log")
}

// ServiceAccountConfig returns a client configuration with a token of an existing service account, so only with its permissions.
// The token is valid for a day.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLifetime.Seconds()))},
	}
	answer, err := c.kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request token of service account %s/%s: %w", namespace, name, err)
	}
	cfg := rest.AnonymousClientConfig(c.admin)
	cfg.BearerToken = answer.Status.Token
	cfg.QPS, cfg.Burst = c.admin.QPS, c.admin.Burst
	return cfg, nil
}
