// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/terminal"
)

// binary returns the path of lockstep, which the tests share.
func binary(t *testing.T) string {
	t.Helper()
	path := driver.Path(t)
	return path
}

func TestMain(m *testing.M) {
	code := m.Run()
	driver.Cleanup()
	os.Exit(code)
}

// watch starts `lockstep watch vllm` on a terminal, with a fake driver.
func watch(t *testing.T, width, height int, env ...string) (*terminal.Terminal, *hosttest.Driver, *plugintest.Server) {
	t.Helper()
	fake := hosttest.New()
	fake.Set(func(c *pb.BatchContext) {
		c.ReleaseId, c.Style, c.State, c.Reason, c.Message = "r1", pb.Style_STYLE_CANARY, pb.State_STATE_UPGRADING, "GroupsNotReady", "1 of 2"
		c.Batches, c.Planned, c.Updated, c.UpdatedReady, c.Total = 1, 2, 2, 1, 6
		c.Groups = []*pb.Group{
			{Index: 0, Role: pb.GroupRole_GROUP_ROLE_STABLE, Leader: "vllm-0", Revision: "aaaa", Ready: true, ReadyPods: 2, Pods: 2},
			{Index: 0, Role: pb.GroupRole_GROUP_ROLE_CANARY, Leader: "vllm-b-0", Revision: "bbbb", Updated: true, ReadyPods: 1, Pods: 2, Reason: "Starting"},
		}
	})
	server := hosttest.Serve(t, fake)
	cmd := exec.CommandContext(t.Context(), binary(t), "watch", "vllm", "-n", "default", "--address", server.Address)
	cmd.Env = env
	return terminal.Start(t, cmd, width, height), fake, server
}

func TestWatchKeepsLastStatus(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			p, _, _ := watch(t, 80, 24)
			p.AwaitWords("upgrading", "✔ ready", "◌ Starting")
			p.Signal(signal)
			if code, text := p.Exit(); code != 0 || !strings.Contains(text, "State     upgrading (GroupsNotReady)") {
				t.Errorf("exit code %d; what stays on the terminal:\n%s", code, text)
			}
		})
	}
}

func TestWatchWithoutColour(t *testing.T) {
	t.Parallel()
	p, _, _ := watch(t, 80, 24, "NO_COLOR=please")
	p.AwaitWords("✔ ready", "◌ Starting")
	const cyan = "\x1b[36m"
	assert.NotContains(t, p.Raw(), cyan, "colours with NO_COLOR")
	coloured, _, _ := watch(t, 80, 24)
	coloured.AwaitWords("✔ ready")
	assert.Contains(t, coloured.Raw(), cyan, "no colours on a terminal that has them")
}

func TestWatchOnDumbTerminal(t *testing.T) {
	t.Parallel()
	dumb, _, _ := watch(t, 100, 24, "TERM=dumb")
	dumb.AwaitWords("upgrading: batch")
	dumb.Signal(syscall.SIGTERM)
	if code, _ := dumb.Exit(); code != 0 || strings.Contains(dumb.Raw(), "\x1b") {
		t.Errorf("TERM=dumb: exit code %d, output %q", code, dumb.Raw())
	}
}

// fleet serves a fake driver with three workloads: a release of "aya" runs, and "bert" and "other/cohere" are at rest.
func fleet(t *testing.T) (client *plugin.Client, address string) {
	t.Helper()
	fake := plugintest.NewFakeDriver()
	fake.SetWorkload("default", "aya", 4, "old")
	fake.SetWorkload("default", "bert", 2, "old")
	fake.SetWorkload("other", "cohere", 2, "old")
	server := hosttest.Serve(t, fake)
	client, err := plugin.Dial(t.Context(), server.Address, plugin.DialOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	for _, ref := range []*pb.WorkloadRef{ref("default", "aya"), ref("default", "bert"), ref("other", "cohere")} {
		_, err := client.Adopt(t.Context(), &pb.AdoptRequest{Workload: ref})
		require.NoError(t, err)
	}
	fake.SetWorkload("default", "aya", 4, "new")
	fake.SetWorkload("other", "cohere", 2, "new")
	begin(t, client, ref("default", "aya"))
	return client, server.Address
}

func ref(namespace, name string) *pb.WorkloadRef {
	return &pb.WorkloadRef{Namespace: namespace, Name: name}
}

func begin(t *testing.T, client *plugin.Client, ref *pb.WorkloadRef) {
	t.Helper()
	_, err := client.Initialize(t.Context(), &pb.InitializeRequest{
		Workload: ref, ReleaseId: "r1", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"50%", "100%"}},
	})
	require.NoError(t, err)
	_, err = client.UpgradeBatch(t.Context(), &pb.UpgradeBatchRequest{Workload: ref, ReleaseId: "r1", Target: &pb.UpgradeBatchRequest_Batch{Batch: 0}})
	require.NoError(t, err)
}

func promote(t *testing.T, client *plugin.Client, ref *pb.WorkloadRef) {
	t.Helper()
	_, err := client.Finalize(t.Context(), &pb.FinalizeRequest{
		Workload: ref, ReleaseId: "r1", Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE,
	})
	require.NoError(t, err)
}

// Without a name, status lists what is under hold, in one namespace or in all.
func TestStatusLists(t *testing.T) {
	t.Parallel()
	_, address := fleet(t)
	list := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), binary(t), append([]string{"status", "--address", address}, args...)...).CombinedOutput()
		assert.NoError(t, err, "%q", args)
		return string(out)
	}
	for _, tt := range []struct {
		args []string
		want []string // words of each line
	}{
		{[]string{"-n", "default"}, []string{"NAME STATE BATCH READY MESSAGE", "aya ready 1/2 (50%) 4/4", "bert holding - 2/2"}},
		{[]string{"-A"}, []string{"NAMESPACE NAME STATE", "default aya ready", "default bert holding", "other cohere holding"}},
		{[]string{"-n", "empty"}, []string{"no workload in namespace empty; those of all namespaces: lockstep status -A"}},
	} {
		lines := strings.Split(strings.TrimSpace(list(tt.args...)), "\n")
		if len(lines) != len(tt.want) {
			t.Errorf("%q: %q", tt.args, lines)
			continue
		}
		for i, line := range lines {
			words := strings.Join(strings.Fields(line), " ")
			assert.True(t, strings.HasPrefix(words, tt.want[i]), "%q: line %d is %q, want %q", tt.args, i, words, tt.want[i])
		}
	}
	documents := list("-A", "-o", "json")
	assert.True(t, strings.Count(documents, `"namespace":"other"`) == 1 && strings.Count(documents, "\n") == 3, "documents:\n%s", documents)
}

func TestWatchPrintsLines(t *testing.T) {
	t.Parallel()
	client, address := fleet(t)
	cmd := exec.CommandContext(t.Context(), binary(t), "watch", "-n", "default", "--address", address)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	next := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.Contains(lines.Text(), want) || strings.Contains(lines.Text(), "\x1b") {
			t.Fatalf("got %q, want %q", lines.Text(), want)
		}
	}
	next("default/aya  ready: batch 1/2 (50%), 2/2 groups ready, stable 4/4 ready, 33% of ready groups are new")
	begin(t, client, ref("other", "cohere")) // of another namespace
	promote(t, client, ref("default", "aya"))
	next("default/aya  completed:")
	next("no release is running, workloads under hold: 2")
	_ = cmd.Process.Signal(syscall.SIGTERM)
	assert.NoError(t, cmd.Wait(), "after SIGTERM")
}
