// Package cluster runs a real Kubernetes control plane on this machine: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, the LeaderWorkerSet manager with its webhooks, KWOK for nodes and pods without containers and, on request,
// the Gateway API with Traefik ([WithTraefik]), Argo Rollouts ([WithArgo]) and Kruise Rollouts ([WithKruise]).
//
// Every program is built from a pinned nested Go module under modules/ and kept in the user's cache folder, so nothing is
// downloaded but Go modules and nothing runs but what those modules contain. A cluster listens on 127.0.0.1 only, has its
// own certificate authority, ports and folder, and several clusters stand side by side.
//
// No process outlives the test or command that started it: children get SIGKILL from the kernel when the thread that
// started them ends, whatever ended it, and [Cluster.Stop] ends them in order before that. The package needs Linux.
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
// How fast a pod becomes ready, whether it ever does and how slowly it goes is set by annotations on the pod template; see
// [AnnotationStartup] and its neighbours.
package cluster
