package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// module is a nested Go module that pins a set of programs whose dependencies agree with each other.
type module struct {
	// name is the folder below modules/.
	name string
	// source is where the module lies instead, in tests.
	source string
	// programs are built from it, in this order.
	programs []program
	// ldflags are linker flags beyond those that strip symbols.
	ldflags string
	// manifests are copied beside the programs: folders of one of the module's dependencies.
	manifests []manifests
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

var kubernetesModule = module{
	name: "kubernetes",
	programs: []program{
		{"etcd", "go.etcd.io/etcd/server/v3"},
		{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
		{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
		{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
	},
	ldflags: "-X k8s.io/component-base/version.gitVersion=v1.36.3" +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36" +
		" -X k8s.io/component-base/version.gitTreeState=clean",
}

var lwsModule = module{
	name:      "lws",
	programs:  []program{{"lws", "sigs.k8s.io/lws/cmd"}},
	ldflags:   "-X sigs.k8s.io/lws/pkg/version.GitVersion=v0.9.0",
	manifests: []manifests{{"sigs.k8s.io/lws", []string{"config/crd/bases", "config/webhook", "config/samples"}}},
}

var kwokModule = module{
	name:     "kwok",
	programs: []program{{"kwok", "sigs.k8s.io/kwok/cmd/kwok"}},
}

// gatewayAPIModule has no program: the Gateway API and the Inference Extension are CRDs.
var gatewayAPIModule = module{
	name: "gatewayapi",
	manifests: []manifests{
		{"sigs.k8s.io/gateway-api", []string{"config/crd/standard"}},
		{"sigs.k8s.io/gateway-api-inference-extension", []string{"config/crd/bases"}},
	},
}

var traefikModule = module{
	name:     "traefik",
	programs: []program{{"traefik", "github.com/traefik/traefik/v3/cmd/traefik"}},
	ldflags:  "-X github.com/traefik/traefik/v3/pkg/version.Version=v3.6.7",
}

var argoModule = module{
	name: "argo",
	programs: []program{
		{"rollouts-controller", "github.com/argoproj/argo-rollouts/cmd/rollouts-controller"},
		{"kubectl-argo-rollouts", "github.com/argoproj/argo-rollouts/cmd/kubectl-argo-rollouts"},
	},
	ldflags: "-X github.com/argoproj/argo-rollouts/utils/version.version=v1.10.1",
	manifests: []manifests{{"github.com/argoproj/argo-rollouts", []string{
		"manifests/crds", "manifests/base", "manifests/role", "manifests/cluster-install",
	}}},
}

// packagePath is where this package lives; its modules/ folder lies beside its source.
const packagePath = "github.com/lockstep-rollouts/lockstep/test/cluster"

// folder finds the module's source. The path that the compiler recorded is right unless the caller was built with
// -trimpath; then the go command knows, if we run inside the repository.
func (m module) folder(ctx context.Context) (string, error) {
	if m.source != "" {
		return m.source, nil
	}
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(file), "modules", m.name)
	if isModule(dir) {
		return dir, nil
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", packagePath).Output()
	if err != nil {
		return "", fmt.Errorf("find the source of %s (run inside the repository): %w", packagePath, err)
	}
	dir = filepath.Join(strings.TrimSpace(string(out)), "modules", m.name)
	if !isModule(dir) {
		return "", fmt.Errorf("find module %s: %s has no go.mod", m.name, dir)
	}
	return dir, nil
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}
