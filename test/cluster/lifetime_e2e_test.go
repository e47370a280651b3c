// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
)

// Ctrl-C on the command, also during startup, leaves no processes and no files. No process outlives one that is killed.
//
// Proves: The test cluster ends all its processes; a late request of KWOK changes no live pod.
func TestCommandInterrupt(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "cluster")
	out, err := exec.Command("go", "build", "-o", binary, "./cmd/cluster").CombinedOutput()
	require.NoError(t, err, "build the command: %v\n%s", err, out)
	for _, when := range []string{"starting", "ready", "killed"} {
		t.Run(when, func(t *testing.T) {
			temporary := t.TempDir()
			command := exec.Command(binary, "--nodes=1", "--without-lws")
			command.Env = append(os.Environ(), "TMPDIR="+temporary)
			stdout, err := command.StdoutPipe()
			require.NoError(t, err)
			children := startParent(t, command, temporary)
			if line := bufio.NewScanner(stdout); when == "ready" && !line.Scan() {
				t.Errorf("the command printed nothing: %v", line.Err())
			} else if when == "ready" && !strings.HasPrefix(line.Text(), "export KUBECONFIG="+temporary) {
				t.Errorf("the command printed %q", line.Text())
			}
			if when == "killed" {
				_ = command.Process.Kill()
				_ = command.Wait()
				waitGone(t, children)
				return
			}
			require.NoError(t, command.Process.Signal(os.Interrupt))
			assert.NoError(t, command.Wait(), "the command exited with")
			waitGone(t, children)
			left, err := os.ReadDir(temporary)
			assert.True(t, err == nil && len(left) == 0, "left behind: %v (%v)", left, err)
		})
	}
}

// startParent starts a program that starts a cluster below dir, and returns the cluster's processes once all run.
func startParent(t *testing.T, parent *exec.Cmd, dir string) []int {
	t.Helper()
	parent.Stderr = t.Output()
	require.NoError(t, parent.Start())
	t.Cleanup(func() { _ = parent.Process.Kill() })
	var children []int
	await.Nil(t, "all components run", func(context.Context) error {
		children = processesBelow(t, dir)
		if len(children) < 5 {
			return fmt.Errorf("%d processes run", len(children))
		}
		return nil
	})
	return children
}

// processesBelow returns the processes whose working directory is in dir, as are those of components.
func processesBelow(t *testing.T, dir string) []int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	var found []int
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(cwd, dir) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		require.NoError(t, err)
		found = append(found, pid)
	}
	return found
}

func waitGone(t *testing.T, pids []int) {
	t.Helper()
	await.Nil(t, "children end", func(context.Context) error {
		for _, pid := range pids {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) && !zombie(pid) {
				return fmt.Errorf("process %d still exists", pid)
			}
		}
		return nil
	})
}

// zombie reports whether a process has exited and was not waited for.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// A component that dies ends the cluster with an error.
//
// Proves: The test cluster ends all its processes; a late request of KWOK changes no live pod.
func TestComponentDies(t *testing.T) {
	c, err := Start(t.Context(), WithDir(filepath.Join(t.TempDir(), "cluster")), WithNodes(1, nil), WithoutLWS(), WithLog(t.Output()))
	require.NoError(t, err)
	defer c.Stop()
	p, err := c.process(Scheduler)
	require.NoError(t, err)
	require.NoError(t, p.Cmd.Process.Kill())
	select {
	case <-c.Done():
	case <-time.After(await.Patience):
		t.Fatal("Done was not closed")
	}
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), Scheduler) || !strings.Contains(err.Error(), p.logPath) {
		t.Errorf("the error lacks the component or the log: %v", err)
	}
}

func TestMain(m *testing.M) {
	os.Exit(Main(m, WithAudit()))
}

// A late request of KWOK for an earlier pod of the same name changes nothing.
//
// Proves: The test cluster ends all its processes; a late request of KWOK changes no live pod.
func TestLateRequestsOfKWOK(t *testing.T) {
	c := Shared(t)
	namespace := c.Namespace(t)
	config, err := clientcmd.BuildConfigFromFlags("", c.path(KWOK+".kubeconfig"))
	require.NoError(t, err)
	late := kubernetes.NewForConfigOrDie(config)
	pods := c.kube.CoreV1().Pods(namespace)
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "example.com/server:v1"}}}}
	pod.Name = "next"
	_, err = pods.Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	await.Nil(t, "the pod runs", func(ctx context.Context) error {
		now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.PodRunning {
			err = errors.New("its phase is " + string(now.Status.Phase))
		}
		return err
	})
	now := int64(0)
	err = late.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	assert.True(t, apierrors.IsInvalid(err), "deleting a live pod: %v, want Invalid", err)
	_, err = late.CoreV1().Pods(namespace).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`),
		metav1.PatchOptions{}, "status")
	assert.True(t, apierrors.IsInvalid(err), "ending a live pod: %v, want Invalid", err)
}

// A control plane of downloaded programs starts, with the etcd that is built beside them. A server on loopback serves the programs that
// were built before: Kubernetes' own site is not tried.
//
// Proves: `make demo PREBUILT=yes`: a control plane of downloaded programs, from a server on loopback.
func TestClusterOfDownloadedPrograms(t *testing.T) {
	o, err := newOptions([]Option{WithLog(t.Output())})
	require.NoError(t, err)
	m := kubernetesModule(o.versions)
	built, err := m.build(t.Context(), o.log)
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, built.program(filepath.Base(r.URL.Path)))
	}))
	defer server.Close()
	local := prebuilt{site: server.URL + "/", sums: map[string]string{}}
	downloaded, _ := officialPrograms.replace(m, hostPlatform())
	for _, d := range downloaded.downloads {
		content, err := os.ReadFile(built.program(d.name))
		require.NoError(t, err)
		local.sums[strings.TrimPrefix(d.url, officialPrograms.site)] = sumOf(content)
	}
	if len(local.sums) == 0 {
		t.Fatalf("no prebuilt programs for %v", hostPlatform())
	}
	// In another cache only the other modules are built.
	root, err := cacheRoot()
	require.NoError(t, err)
	another := t.TempDir()
	for _, other := range o.modules() {
		if other.name != m.name {
			require.NoError(t, os.Symlink(filepath.Join(root, other.name), filepath.Join(another, other.name)))
		}
	}
	t.Setenv(CacheEnv, another)
	c, err := Start(t.Context(), WithLog(t.Output()), WithNodes(1, nil), func(o *options) { o.prebuilt = local })
	require.NoError(t, err)
	defer c.Stop()
	done, err := c.build(t.Context(), kubernetesModule)
	assert.True(t, err == nil && filepath.Dir(filepath.Dir(done.dir)) == another, "the programs are in %s (%v) instead of %s", done.dir, err, another)
	entries, err := filepath.Glob(filepath.Join(another, m.name, "*", "bin", "*"))
	assert.True(t, err == nil && len(entries) == 4, "want one build of four programs, got %v (%v)", entries, err)
}
