// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package compatibility lists the versions of Kubernetes, LeaderWorkerSet, the hosts and the Gateway API that Lockstep is
// tested with. It is their only source in Go: `lockstep version` prints the lists, and the test cluster builds these versions.
//
//	fmt.Println(compatibility.LWS.Default()) // what `make test` runs
//	for _, version := range compatibility.LWS.Versions {
//		// what `make test-all` runs
//	}
//
// docs/compatibility.md has the same lists; a test compares them. The package imports the standard library only, so that all
// packages can import it.
package compatibility

// Component is a program or an API that Lockstep runs on or beside.
type Component struct {
	// Key identifies the component in documents and on command lines: "argoRollouts".
	Key string
	// Name is the component's own name: "Argo Rollouts".
	Name string
	// Module is the Go module that has the component's programs and manifests. A version of the component is one of the module.
	Module string
	// Versions are the tested versions, with their "v". The first one is the default.
	Versions []string
}

// Default returns the version that `make test` runs.
func (c Component) Default() string { return c.Versions[0] }

// The components, and the versions that each is tested in.
var (
	// Kubernetes is the control plane: API server, controller manager, scheduler.
	Kubernetes = Component{
		Key: "kubernetes", Name: "Kubernetes", Module: "k8s.io/kubernetes",
		Versions: []string{"v1.36.3", "v1.37.1", "v1.35.8", "v1.34.10"},
	}
	// LWS is the LeaderWorkerSet controller and its CRDs.
	LWS = Component{
		Key: "lws", Name: "LeaderWorkerSet", Module: "sigs.k8s.io/lws",
		Versions: []string{"v0.9.0", "v0.10.0"},
	}
	// ArgoRollouts is the controller that launches Lockstep as its plugin.
	ArgoRollouts = Component{
		Key: "argoRollouts", Name: "Argo Rollouts", Module: "github.com/argoproj/argo-rollouts",
		Versions: []string{"v1.10.1", "v1.10.2"},
	}
	// KruiseRollouts is the manager that releases through RolloutTargets.
	KruiseRollouts = Component{
		Key: "kruiseRollouts", Name: "Kruise Rollouts", Module: "github.com/openkruise/rollouts",
		Versions: []string{"v0.6.2", "v0.6.3"},
	}
	// GatewayAPI is the CRDs of the standard channel.
	GatewayAPI = Component{
		Key: "gatewayAPI", Name: "Gateway API", Module: "sigs.k8s.io/gateway-api",
		Versions: []string{"v1.6.3", "v1.5.1", "v1.4.1"},
	}
)

// All returns the components in the order in which they are shown.
func All() []Component {
	return []Component{Kubernetes, LWS, ArgoRollouts, KruiseRollouts, GatewayAPI}
}
