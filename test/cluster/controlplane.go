// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubernetesService is the address of the API server's Service, the first one of the range.
const kubernetesService = "10.0.0.1"

var etcdComponent = component{
	name: Etcd, module: kubernetesModule, program: "etcd",
	command: etcdCommand,
	ready: func(ctx context.Context, c *Cluster) error {
		return c.probe(ctx, "https://"+address(c.port.etcd)+"/health")
	},
}

func etcdCommand(c *Cluster) (command, error) {
	client, peer := "https://"+address(c.port.etcd), "http://"+address(c.port.etcdPeer)
	return command{args: []string{
		"--name=etcd",
		"--data-dir=" + c.path("etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=etcd=" + peer,
		"--client-cert-auth",
		"--trusted-ca-file=" + c.path("ca.crt"),
		"--cert-file=" + c.path("serving", "tls.crt"),
		"--key-file=" + c.path("serving", "tls.key"),
		"--unsafe-no-fsync",
		// A single member elects itself: a short timeout is safe.
		"--heartbeat-interval=10", "--election-timeout=50",
		"--quota-backend-bytes=2147483648",
		"--log-level=warn",
	}}, nil
}

var apiServerComponent = component{
	name: APIServer, module: kubernetesModule, program: "kube-apiserver",
	command: apiServerCommand,
	ready: func(ctx context.Context, c *Cluster) error {
		return c.probe(ctx, "https://"+address(c.port.apiServer)+"/readyz")
	},
}

func apiServerCommand(c *Cluster) (command, error) {
	args := []string{
		"--etcd-servers=https://" + address(c.port.etcd),
		"--etcd-cafile=" + c.path("ca.crt"),
		"--etcd-certfile=" + c.path("serving", "tls.crt"),
		"--etcd-keyfile=" + c.path("serving", "tls.key"),
		fmt.Sprintf("--secure-port=%d", c.port.apiServer),
		"--tls-cert-file=" + c.path("serving", "tls.crt"),
		"--tls-private-key-file=" + c.path("serving", "tls.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--service-account-key-file=" + c.path("service-account.key"),
		"--service-account-signing-key-file=" + c.path("service-account.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.0.0.0/16",
		"--profiling=false",
		"--shutdown-delay-duration=0s",
	}
	if c.options.kubelets > 0 {
		args = append(args, "--bind-address=0.0.0.0", "--advertise-address="+controlPlaneAddress.String())
	} else {
		args = append(args, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
			// Pods have no containers that could read a mounted token.
			"--disable-admission-plugins=ServiceAccount")
	}
	if c.options.audit {
		policy := c.path("audit-policy.yaml")
		if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
			return command{}, err
		}
		args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+c.path("audit.log"), "--audit-log-maxsize=10000")
	}
	return command{args: args}, nil
}

// auditPolicy logs each request once, when it completes, and a watch also when it starts.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

var controllerManagerComponent = component{
	name: ControllerManager, module: kubernetesModule, program: "kube-controller-manager",
	command: func(c *Cluster) (command, error) {
		args := c.controllerArgs(ControllerManager, c.port.controllerManager)
		if !c.older(36) {
			// With this feature a StatefulSet is requeued while the cache lags behind its last write, at ten per second in total: pods
			// of concurrent tests would be delayed more and more.
			args = append(args, "--feature-gates=StaleControllerConsistencyStatefulSet=false")
		}
		return command{args: append(args,
			"--kubeconfig="+c.path(ControllerManager+".kubeconfig"),
			"--leader-elect=false",
			"--service-account-private-key-file="+c.path("service-account.key"),
			"--root-ca-file="+c.path("ca.crt"),
			"--kube-api-qps=1000", "--kube-api-burst=2000",
			"--concurrent-statefulset-syncs=20",
			// No component reads Endpoints, which are written as often as EndpointSlices.
			"--controllers=*,-endpoints-controller,-endpointslice-mirroring-controller",
			"--horizontal-pod-autoscaler-sync-period=1s",
			"--node-monitor-grace-period="+c.nodeGrace().String(),
		)}, nil
	},
	ready: controllersReady,
}

// nodeGrace is how long a node may be silent. KWOK's nodes report rarely, and tests that pause KWOK or the API server must keep their
// pods.
func (c *Cluster) nodeGrace() time.Duration {
	if c.options.kubelets > 0 {
		return 20 * time.Second
	}
	return 10 * time.Minute
}

// older reports whether the cluster's Kubernetes is older than v1.minor.
func (c *Cluster) older(than int) bool {
	number, err := strconv.Atoi(minor(c.options.versions.Kubernetes))
	return err == nil && number < than
}

// controllersReady checks for an object that the service account controller creates in a new cluster.
func controllersReady(ctx context.Context, c *Cluster) error {
	if err := c.probe(ctx, "https://"+address(c.port.controllerManager)+"/healthz"); err != nil {
		return err
	}
	_, err := c.kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

var schedulerComponent = component{
	name: Scheduler, module: kubernetesModule, program: "kube-scheduler",
	command: schedulerCommand,
	ready: func(ctx context.Context, c *Cluster) error {
		return c.probe(ctx, "https://"+address(c.port.scheduler)+"/readyz")
	},
}

func schedulerCommand(c *Cluster) (command, error) {
	config := c.path("scheduler.yaml")
	content := fmt.Sprintf(schedulerConfig, c.path(Scheduler+".kubeconfig"))
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		return command{}, err
	}
	return command{args: append(c.controllerArgs(Scheduler, c.port.scheduler), "--config="+config)}, nil
}

const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 1000, burst: 2000}
`

// controllerArgs returns the serving and authentication flags of Kubernetes' own controllers.
func (c *Cluster) controllerArgs(user string, port int) []string {
	kubeconfig := c.path(user + ".kubeconfig")
	return []string{
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file=" + c.path("serving", "tls.crt"),
		"--tls-private-key-file=" + c.path("serving", "tls.key"),
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--profiling=false",
	}
}
