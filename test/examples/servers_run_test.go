// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package examples

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/modelservers"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// The commands of each model server's README: a clean preflight, and a release whose gates are measured. One server after the other,
// because the nodes have GPUs for one release.
//
// Proves: Examples of model servers, each: without a host, with Argo, with Kruise.
// Proves (test, vllm): Examples of model servers: the commands of their READMEs; preflight is clean.
func TestModelServers(t *testing.T) {
	for _, server := range modelservers.Names() {
		t.Run(server, func(t *testing.T) {
			c := cluster.Shared(t)
			modelservers.InstallCRDs(t, c)
			prometheus := modelservers.StartPrometheus(t)
			e := &env{Env: suite.NewEnv(t, c, server), binary: binary(t), kubeconfig: c.Kubeconfig()}
			user := strings.NewReplacer(
				"lockstep ", e.binary+" --namespace "+e.Namespace+" ", "http://localhost:9090", prometheus.URL,
				"examples/"+server+"/policy.yaml", quickPolicy(t, server),
			)
			for line := range strings.Lines(e.block(server, "kubectl apply -k")) {
				switch command := strings.TrimSpace(line); {
				case command == "kubectl apply -k examples/"+server+"/base":
					e.Apply(modelservers.Manifest(t, source(), server, "base", e.Namespace))
					e.AwaitReady()
				case strings.HasPrefix(command, "kubectl edit leaderworkerset "+server):
					e.Edit("v2")
				case strings.HasPrefix(command, "lockstep "):
					e.run(user.Replace(command))
				default:
					t.Fatalf("the test does not know %q", command)
				}
			}
			e.mustRunReleased(server, prometheus)
			assert.NoError(t, suite.Held(e.Workload(t.Context())))
			// The GPUs are for the next server.
			suite.DeleteWorkload(t, c, e.Namespace, server)
		})
	}
}

// mustRunReleased fails the test unless all pods run the new image, and canary and stable groups were compared.
func (e *env) mustRunReleased(server string, prometheus *modelservers.Prometheus) {
	e.T.Helper()
	e.Eventually("all pods run the new image", func(ctx context.Context) error {
		pods, err := e.Kube.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if got := pods.Items[i].Spec.Containers[0].Image; got != image+"v2" {
				return fmt.Errorf("pod %s runs %s", pods.Items[i].Name, got)
			}
		}
		if len(pods.Items) != 4 {
			return errors.New("there are pods of a canary, or too few")
		}
		return nil
	})
	assert.True(e.T, prometheus.Asked(map[string]string{"vllm": "vllm:", "sglang": "sglang[:_]", "tensorrt-llm": "nv_inference_"}[server], e.Namespace),
		"no gate was measured")
}

// quickPolicy returns the file of a server's policy, whose gates are measured within seconds.
func quickPolicy(t *testing.T, server string) string {
	t.Helper()
	example := files.Read(t, source(server, "policy.yaml"))
	policy := map[string]any{}
	require.NoError(t, yaml.Unmarshal(example, &policy))
	gates, ok := policy["gates"].([]any)
	require.True(t, ok && len(gates) == 2, "the gates are %v", policy["gates"])
	for _, gate := range gates {
		gate, ok := gate.(map[string]any)
		require.True(t, ok, "a gate is %v", gate)
		gate["window"], gate["interval"], gate["count"] = "1s", "1s", 2
	}
	text, err := yaml.Marshal(policy)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	files.Write(t, path, text)
	return path
}

// commandLimit bounds the commands of a block, also with cold caches, and if the test is killed.
const commandLimit = "10m"

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// block returns the commands of the only shell block of a README that contains text. It replaces the binary, the address and
// the namespace by those of the test.
func (e *env) block(folder, text string) string {
	e.T.Helper()
	readme := files.Read(e.T, source(folder, "README.md"))
	var found []string
	for _, match := range shellBlock.FindAllSubmatch(readme, -1) {
		if block := string(match[1]); strings.Contains(block, text) {
			found = append(found, block)
		}
	}
	require.Len(e.T, found, 1, "%s/README.md has %d shell blocks with %q, want 1", folder, len(found), text)
	return strings.NewReplacer(
		"bin/lockstep", e.binary,
		"unix:///tmp/lockstep/driver.sock", e.address,
		" default ", " "+e.Namespace+" ",
	).Replace(found[0])
}

// command runs a script in the repository's root.
func (e *env) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "timeout", "--kill-after=5s", commandLimit, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = source("..")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+e.kubeconfig, "npm_config_prefer_offline=true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run returns the output of a script, which must succeed.
func (e *env) run(script string) string {
	e.T.Helper()
	start := time.Now()
	out, err := e.command(e.T.Context(), script).CombinedOutput()
	require.NoError(e.T, err, "%v from\n%s\nwhich printed\n%s", err, script, out)
	e.T.Logf("%.1f s: %s%s", time.Since(start).Seconds(), script, out)
	return string(out)
}

// process is a script that runs beside the test.
type process struct {
	output string
	stop   context.CancelFunc
	ended  chan error
}

// start runs a script beside the test, until stop or the end of the test.
func (e *env) start(script string) *process {
	e.T.Helper()
	p := &process{output: filepath.Join(e.T.TempDir(), "output"), ended: make(chan error, 1)}
	file, err := os.Create(p.output)
	require.NoError(e.T, err)
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	cmd := e.command(ctx, script)
	cmd.Stdout, cmd.Stderr = file, file
	require.NoError(e.T, cmd.Start())
	go func() {
		err := cmd.Wait()
		_ = file.Close()
		p.ended <- err
		close(p.ended)
	}()
	e.T.Cleanup(func() {
		p.stop()
		<-p.ended
		e.T.Logf("beside the test: %s%s", script, p.text())
	})
	return p
}

// wait returns the script's error.
func (p *process) wait() error { return <-p.ended }

// text returns the output so far.
func (p *process) text() string {
	out, err := os.ReadFile(p.output)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// serve starts the driver with a README's block, and waits until it listens.
func (e *env) serve(folder string) {
	e.T.Helper()
	e.start(e.block(folder, "serve --listen"))
	e.Eventually("the driver listens", func(context.Context) error {
		_, err := os.Stat(strings.TrimPrefix(e.address, "unix://"))
		return err
	})
}
