// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/test/netns"
)

// Nodes of [WithKubelets]: their addresses and those of their pods are routed within the network namespace.
var (
	controlPlaneAddress = netip.MustParseAddr("192.0.2.254")
	dnsAddress          = netip.MustParseAddr("192.0.2.253")
)

// maxKubelets is limited by the addresses.
const maxKubelets = 8

func nodeAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}) }

func podRange(i int) string { return fmt.Sprintf("10.64.%d.0/24", i) }

// NodeName returns the name of the i-th node.
func NodeName(i int) string { return "node-" + strconv.Itoa(i) }

// Names of the components of nodes.
const (
	KubeProxy = "kube-proxy"
	DNS       = "coredns"
)

// Kubelet returns the name of the i-th node's kubelet.
func Kubelet(i int) string { return "kubelet-" + strconv.Itoa(i) }

// Containerd returns the name of the i-th node's containerd.
func Containerd(i int) string { return "containerd-" + strconv.Itoa(i) }

// WithKubelets starts this many nodes that run containers, instead of KWOK: containerd, runc, the bridge plugin of CNI and a kubelet
// each, and for all of them kube-proxy, CoreDNS and a registry of images, see [Cluster.PushProgram]. Pods reach the API server with
// their service account. The tests must run in [MainOnNode].
func WithKubelets(n int) Option {
	return func(o *options) { o.nodes, o.kubelets = 0, n }
}

// MainOnNode is [netns.MainOnNode] with the addresses that a cluster [WithKubelets] has.
func MainOnNode(prepare func() error, run func() int) int {
	addresses := make([]netip.Addr, 0, 2+maxKubelets)
	addresses = append(addresses, controlPlaneAddress, dnsAddress)
	for i := range maxKubelets {
		addresses = append(addresses, nodeAddress(i))
	}
	return netns.MainOnNode(prepare, run, addresses...)
}

// bootNodes starts the nodes, or KWOK.
func (c *Cluster) bootNodes(ctx context.Context) error {
	if c.options.kubelets == 0 {
		return c.start(ctx, kwokComponent)
	}
	if !netns.OnNode() {
		return errors.New("nodes with containers need the namespaces of cluster.MainOnNode")
	}
	if err := c.startRegistry(ctx); err != nil {
		return err
	}
	if err := c.start(ctx, dnsComponent); err != nil {
		return err
	}
	for i := range c.options.kubelets {
		if err := c.start(ctx, containerdComponent(i)); err != nil {
			return err
		}
		if err := c.start(ctx, kubeletComponent(i)); err != nil {
			return err
		}
	}
	return c.start(ctx, kubeProxyComponent)
}

// endNodes ends the nodes with their containers, and unmounts what these had mounted.
func (c *Cluster) endNodes() {
	if c.options.kubelets == 0 {
		return
	}
	c.end(KubeProxy, nil)
	for i := range c.options.kubelets {
		c.end(Kubelet(i), nil)
		c.end(Containerd(i), nil)
		if err := c.killContainers(i); err != nil {
			c.logf("%v", err)
		}
	}
	c.end(DNS, nil)
	if c.registry != nil {
		_ = c.registry.Close()
	}
	if err := unmountBelow(c.dir); err != nil {
		c.logf("%v", err)
	}
}

func containerdComponent(i int) component {
	dir := Containerd(i)
	return component{
		name: dir, module: containerdModule, program: "containerd",
		command: func(c *Cluster) (command, error) {
			cni, err := cniModule(c.options.versions).build(context.Background(), c.options.log)
			if err != nil {
				return command{}, err
			}
			runc, err := runcModule(c.options.versions).build(context.Background(), c.options.log)
			if err != nil {
				return command{}, err
			}
			network := fmt.Sprintf(cniConfig, i, podRange(i), c.path(dir, "addresses"))
			if err := writeFile(c.path(dir, "net.d", "bridge.conflist"), network); err != nil {
				return command{}, err
			}
			config := c.path(dir, "config.toml")
			return command{args: []string{"--config=" + config}}, writeFile(config, fmt.Sprintf(containerdConfig,
				c.path(dir, "root"), c.path(dir, "state"), c.containerdSocket(i), c.pauseImage(),
				filepath.Dir(cni.program("bridge")), c.path(dir, "net.d"), runc.program("runc")))
		},
		ready: func(ctx context.Context, c *Cluster) error {
			// The socket of a killed containerd is still there.
			connection, err := (&net.Dialer{}).DialContext(ctx, "unix", c.containerdSocket(i))
			if err != nil {
				return err
			}
			return connection.Close()
		},
	}
}

// containerdSocket is in /run, which is the namespace's own: the path of a socket must be short.
func (c *Cluster) containerdSocket(i int) string { return "/run/" + Containerd(i) + ".sock" }

// writeFile writes a configuration file and its directory.
func writeFile(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o600)
}

const cniConfig = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": "pods%d", "isGateway": true,
  "ipam": {"type": "host-local", "dataDir": %[3]q, "ranges": [[{"subnet": %[2]q}]], "routes": [{"dst": "0.0.0.0/0"}]}
}]}`

// A process may not lower its OOM score without CAP_SYS_RESOURCE.
const containerdConfig = `version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = %q
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%q]
    conf_dir = %q
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = %q
      SystemdCgroup = false
`

func kubeletComponent(i int) component {
	return component{
		name: Kubelet(i), module: nodeModule, program: "kubelet",
		command: func(c *Cluster) (command, error) {
			dir := Kubelet(i)
			config := c.path(dir, "config.yaml")
			return command{args: []string{
					"--config=" + config,
					"--kubeconfig=" + c.path("kubelet.kubeconfig"),
					"--root-dir=" + c.path(dir, "root"),
					"--cert-dir=" + c.path(dir, "certificates"),
					"--hostname-override=" + NodeName(i),
					"--node-ip=" + nodeAddress(i).String(),
				}}, writeFile(config, fmt.Sprintf(kubeletConfig, nodeAddress(i), c.port.kubelets[2*i], c.port.kubelets[2*i+1], c.containerdSocket(i),
					dnsAddress, c.path(dir, "logs"), c.path(dir, "plugins")))
		},
		ready: func(ctx context.Context, c *Cluster) error { return c.nodeReady(ctx, i) },
	}
}

func (c *Cluster) nodeReady(ctx context.Context, i int) error {
	node, err := c.kube.CoreV1().Nodes().Get(ctx, NodeName(i), metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return fmt.Errorf("node %s is not ready: %s", node.Name, condition.Message)
		}
	}
	return nil
}

// The kubelet manages no cgroups but those of containers, and evicts no pods: the machine is shared. It renews its lease every two
// seconds, for tests of nodes that die.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %s
port: %d
healthzPort: %d
readOnlyPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}, x509: {clientCAFile: ""}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: "unix://%s"
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%"}
imageGCHighThresholdPercent: 100
clusterDNS: [%s]
clusterDomain: cluster.local
resolvConf: ""
podLogsDir: %q
volumePluginDir: %q
nodeLeaseDurationSeconds: 8
serializeImagePulls: false
`

var kubeProxyComponent = component{
	name: KubeProxy, module: nodeModule, program: "kube-proxy",
	command: func(c *Cluster) (command, error) {
		config := c.path("kube-proxy.yaml")
		return command{args: []string{"--config=" + config}},
			writeFile(config, fmt.Sprintf(kubeProxyConfig, c.path("kube-proxy.kubeconfig"), NodeName(0), address(c.port.proxyHealth)))
	},
	ready: func(ctx context.Context, c *Cluster) error {
		return answers(ctx, "http://"+address(c.port.proxyHealth)+"/healthz", http.StatusOK)
	},
}

// The limits of connection tracking are those of the machine.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %q}
hostnameOverride: %s
healthzBindAddress: %q
metricsBindAddress: ""
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

var dnsComponent = component{
	name: DNS, module: dnsModule, program: "coredns",
	command: func(c *Cluster) (command, error) {
		config := c.path("Corefile")
		return command{args: []string{"-conf=" + config}},
			writeFile(config, fmt.Sprintf(corefile, dnsAddress, address(c.port.dnsReady), c.path("coredns.kubeconfig")))
	},
	ready: func(ctx context.Context, c *Cluster) error {
		return answers(ctx, "http://"+address(c.port.dnsReady)+"/ready", http.StatusOK)
	},
}

// Names are not cached.
const corefile = `. {
	bind %s
	errors
	ready %s
	kubernetes cluster.local in-addr.arpa {
		kubeconfig %s
		pods insecure
		ttl 0
	}
}
`
