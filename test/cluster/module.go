// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// module is a nested Go module that pins programs with compatible dependencies.
type module struct {
	// name and version are its directory below modules/.
	name, version string
	// source is the module's directory instead, in tests.
	source string
	// programs are built with one go command.
	programs []program
	// downloads are programs that are downloaded instead.
	downloads []download
	// ldflags are linker flags, beside those that strip symbols.
	ldflags string
	// manifests are copied beside the programs: directories of the module's dependencies.
	manifests []manifests
	// tags are build tags.
	tags string
	// cgo: the programs need a C compiler.
	cgo bool
	// own are files of the module that are part of its programs.
	own []string
	// trims are parts of dependencies that are left out.
	trims []trim
}

// program is one binary of a module.
type program struct {
	name, pkg string
}

// manifests are directories of a dependency that the installation of a component needs.
type manifests struct {
	dependency string
	folders    []string
}

// The modules of given versions. Components with one version only ignore the argument.

func kubernetesModule(v Versions) module {
	const version = "-X k8s.io/component-base/version."
	return module{
		name: "kubernetes", version: v.Kubernetes,
		programs: []program{
			{"etcd", "go.etcd.io/etcd/server/v3"},
			{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
			{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
			{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
		},
		ldflags: version + "gitVersion=" + v.Kubernetes + " " + version + "gitMajor=1 " +
			version + "gitMinor=" + minor(v.Kubernetes) + " " + version + "gitTreeState=clean",
		// Helpers of Kubernetes' own tests are in a package of the API server, and import client-go's fake clients.
		trims: []trim{{"k8s.io/apiserver", "pkg/admission/plugin/policy/generic", "policy_test_context.go", ""}},
	}
}

// nodeModule has Kubernetes' programs for nodes. Only the default version has them.
func nodeModule(v Versions) module {
	m := kubernetesModule(v)
	m.programs = []program{
		{"kubelet", "k8s.io/kubernetes/cmd/kubelet"},
		{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"},
	}
	return m
}

func containerdModule(Versions) module {
	return module{
		name: "containerd", version: "v2.4.2", tags: "no_btrfs no_devmapper no_zfs no_aufs",
		programs: []program{
			{"containerd", "github.com/containerd/containerd/v2/cmd/containerd"},
			{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
		},
		ldflags: "-X github.com/containerd/containerd/v2/version.Version=v2.4.2",
	}
}

// runcModule needs a C compiler, pkg-config and libseccomp's headers.
func runcModule(Versions) module {
	return module{
		name: "runc", version: "v1.5.2", tags: "seccomp", cgo: true,
		programs: []program{{"runc", "github.com/opencontainers/runc"}},
	}
}

func cniModule(Versions) module {
	return module{
		name: "cni", version: "v1.9.1",
		programs: []program{
			{"bridge", "github.com/containernetworking/plugins/plugins/main/bridge"},
			{"loopback", "github.com/containernetworking/plugins/plugins/main/loopback"},
			{"host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local"},
		},
	}
}

func dnsModule(Versions) module {
	return module{
		name: "coredns", version: "v1.15.0", own: []string{"main.go"},
		programs: []program{{"coredns", packagePath + "/modules/coredns"}},
	}
}

func lwsModule(v Versions) module {
	return module{
		name: "lws", version: v.LWS,
		programs:  []program{{"lws", "sigs.k8s.io/lws/cmd"}},
		ldflags:   "-X sigs.k8s.io/lws/pkg/version.GitVersion=" + v.LWS,
		manifests: []manifests{{"sigs.k8s.io/lws", []string{"config/crd/bases", "config/webhook", "config/samples"}}},
	}
}

func kwokModule(Versions) module {
	return module{
		name: "kwok", version: "v0.8.0",
		programs: []program{{"kwok", "sigs.k8s.io/kwok/cmd/kwok"}},
	}
}

// gatewayAPIModule has no programs: the Gateway API and the Inference Extension are CRDs.
func gatewayAPIModule(v Versions) module {
	return module{
		name: "gatewayapi", version: v.GatewayAPI,
		manifests: []manifests{
			{"sigs.k8s.io/gateway-api", []string{"config/crd/standard"}},
			{"sigs.k8s.io/gateway-api-inference-extension", []string{inferenceCRDs}},
		},
	}
}

func argoModule(v Versions) module {
	return module{
		name: "argo", version: v.Argo,
		programs: []program{
			{"rollouts-controller", "github.com/argoproj/argo-rollouts/cmd/rollouts-controller"},
			{"kubectl-argo-rollouts", "github.com/argoproj/argo-rollouts/cmd/kubectl-argo-rollouts"},
		},
		ldflags: "-X github.com/argoproj/argo-rollouts/utils/version.version=" + v.Argo,
		manifests: []manifests{{"github.com/argoproj/argo-rollouts", []string{
			"manifests/crds", "manifests/base", "manifests/role", "manifests/cluster-install",
		}}},
	}
}

func kruiseModule(v Versions) module {
	return module{
		name: "kruise", version: v.Kruise,
		programs: []program{{"kruise-rollouts", "github.com/openkruise/rollouts"}},
		manifests: []manifests{{"github.com/openkruise/rollouts", []string{
			"config/crd/bases", "config/rbac", "config/webhook",
		}}},
	}
}

// batchReleaseModule has the CRDs of Kruise Rollouts without its manager.
func batchReleaseModule(v Versions) module {
	m := kruiseModule(v)
	m.programs, m.manifests = nil, []manifests{{"github.com/openkruise/rollouts", []string{"config/crd/bases"}}}
	return m
}

// kueueModule has Kueue's manager.
func kueueModule(Versions) module {
	return module{
		name: "kueue", version: "v0.19.0",
		programs:  []program{{"kueue", "sigs.k8s.io/kueue/cmd/kueue"}},
		ldflags:   "-X sigs.k8s.io/kueue/pkg/version.GitVersion=v0.19.0",
		manifests: []manifests{{"sigs.k8s.io/kueue", []string{"config/components/crd/bases", "config/components/webhook"}}},
	}
}

// kedaModule has no programs: the tests check writes to a ScaledObject, which need no controller.
func kedaModule(Versions) module {
	return module{
		name: "keda", version: "v2.19.0",
		manifests: []manifests{{"github.com/kedacore/keda/v2", []string{"config/crd/bases"}}},
	}
}

// traefikModule has Traefik without the DNS providers of its ACME library and without its provider for Amazon ECS, which are two
// thirds of its packages, and which no test uses.
func traefikModule(Versions) module {
	return module{
		name: "traefik", version: "v3.6.7",
		programs: []program{{"traefik", "github.com/traefik/traefik/v3/cmd/traefik"}},
		ldflags:  "-X github.com/traefik/traefik/v3/pkg/version.Version=v3.6.7",
		trims: []trim{
			{"github.com/go-acme/lego/v4", "providers/dns", "*.go", "dns.go.txt"},
			{"github.com/traefik/traefik/v3", "pkg/provider/ecs", "*.go", "ecs.go.txt"},
		},
	}
}

// environment is that of the module's build.
func (m module) environment() []string {
	if m.cgo {
		return []string{"CGO_ENABLED=1"}
	}
	return nil
}

// packagePath is the import path of this package, whose source directory has modules/.
const packagePath = "github.com/lockstep-rollouts/lockstep/test/cluster"

// packageDir returns the directory of this package's source: the path that the compiler recorded or, with -trimpath, that of the go
// command, which requires a working directory in the repository.
var packageDir = sync.OnceValues(func() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	if dir := filepath.Dir(file); exists(filepath.Join(dir, "modules")) {
		return dir, nil
	}
	out, err := exec.CommandContext(context.Background(), "go", "list", "-f", "{{.Dir}}", packagePath).Output()
	if err != nil {
		return "", fmt.Errorf("find the source of %s (run inside the repository): %w", packagePath, err)
	}
	return strings.TrimSpace(string(out)), nil
})

// folder returns the module's source directory.
func (m module) folder() (string, error) {
	if m.source != "" {
		return m.source, nil
	}
	dir, err := packageDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "modules", m.name, m.version)
	if !exists(filepath.Join(dir, "go.mod")) {
		return "", fmt.Errorf("find module %s: %s has no go.mod", m, dir)
	}
	return dir, nil
}
