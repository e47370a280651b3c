// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes control plane on this machine: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, the LeaderWorkerSet manager with its webhooks, KWOK for nodes and pods without containers and, on request,
// the Gateway API with Traefik ([WithTraefik]), Argo Rollouts ([WithArgo]) and Kruise Rollouts ([WithKruise]).
//
// Every program is built from a pinned nested Go module under modules/ and kept in the user's cache directory, so only Go modules are
// downloaded. A cluster listens on 127.0.0.1 only, and has its own certificate authority, ports and directory, so that several
// clusters can run concurrently.
//
// No process outlives the test or command that started it: the kernel sends SIGKILL to children when the thread that started them
// ends, and [Cluster.Stop] stops them in order before that. The package needs Linux.
//
// A test package shares one cluster:
//
//	func TestMain(m *testing.M) { os.Exit(cluster.Main(m)) }
//
//	func TestRelease(t *testing.T) {
//		c := cluster.Shared(t)
//		namespace := c.Namespace(t)
//		client := kubernetes.NewForConfigOrDie(c.RESTConfig())
//		...
//	}
//
// Annotations on the pod template set how fast a pod becomes ready, if ever, and how long it takes to terminate; see
// [AnnotationStartup] and the like.
package cluster
