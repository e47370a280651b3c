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

// module is a nested Go module that pins a set of programs whose dependencies agree with each other.
type module struct {
	// name and version are its folder below modules/.
	name, version string
	// source is where the module lies instead, in tests.
	source string
	// programs are built from it, in one call of the go command.
	programs []program
	// ldflags are linker flags beyond those that strip symbols.
	ldflags string
	// manifests are copied beside the programs: folders of one of the module's dependencies.
	manifests []manifests
	// trims are packages of dependencies that the build replaces.
	trims []trim
}

// program is one binary of a module.
type program struct {
	name, pkg string
}

// manifests names folders that a dependency ships and that a component needs when it is installed.
type manifests struct {
	dependency string
	folders    []string
}

// A pinned module for each set of versions. Those that cannot be chosen have one version, and ignore the argument.

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

// gatewayAPIModule has no program: the Gateway API and the Inference Extension are CRDs.
func gatewayAPIModule(v Versions) module {
	return module{
		name: "gatewayapi", version: v.GatewayAPI,
		manifests: []manifests{
			{"sigs.k8s.io/gateway-api", []string{"config/crd/standard"}},
			{"sigs.k8s.io/gateway-api-inference-extension", []string{"config/crd/bases"}},
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

// batchReleaseModule is the CRDs of Kruise Rollouts without its manager.
func batchReleaseModule(v Versions) module {
	m := kruiseModule(v)
	m.programs, m.manifests = nil, []manifests{{"github.com/openkruise/rollouts", []string{"config/crd/bases"}}}
	return m
}

// kedaModule has no program: the tests check what is written to a ScaledObject, which needs no controller.
func kedaModule(Versions) module {
	return module{
		name: "keda", version: "v2.19.0",
		manifests: []manifests{{"github.com/kedacore/keda/v2", []string{"config/crd/bases"}}},
	}
}

// traefikModule is Traefik without the DNS providers of its ACME library and without its provider for Amazon ECS: two thirds of
// what there is to compile, for nothing that a test uses.
func traefikModule(Versions) module {
	return module{
		name: "traefik", version: "v3.6.7",
		programs: []program{{"traefik", "github.com/traefik/traefik/v3/cmd/traefik"}},
		ldflags:  "-X github.com/traefik/traefik/v3/pkg/version.Version=v3.6.7",
		trims: []trim{
			{"github.com/go-acme/lego/v4", "providers/dns", "dns.go.txt"},
			{"github.com/traefik/traefik/v3", "pkg/provider/ecs", "ecs.go.txt"},
		},
	}
}

// packagePath is where this package lives; its modules/ folder lies beside its source.
const packagePath = "github.com/lockstep-rollouts/lockstep/test/cluster"

// packageDir is the folder of this package's source. The path that the compiler recorded is right unless the caller was built
// with -trimpath; then the go command knows, if we run inside the repository.
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

// folder finds the module's source.
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
