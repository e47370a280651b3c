// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin"
)

// A host that imports the SDK must not get a Kubernetes client with it. The hosts under plugin/ (Argo, Kruise) are
// adapters to Kubernetes and are left out.
func TestNoKubernetesInTheSDK(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", ".", "./drivererr", "./plugintest", "../proto/...", "./endpoint")
	out, err := cmd.Output()
	require.NoError(t, err, "go list")
	for pkg := range strings.Lines(string(out)) {
		for _, prefix := range []string{"k8s.io/", "sigs.k8s.io/"} {
			assert.False(t, strings.HasPrefix(pkg, prefix), "the SDK depends on %s", strings.TrimSpace(pkg))
		}
	}
}

// tableRows returns the first cells of SPEC.md's rows, with how often each occurs, and the third cells.
func tableRows(t *testing.T) (count map[string]int, third map[string]string) {
	t.Helper()
	text, err := os.ReadFile("../proto/lockstep/v1alpha1/SPEC.md")
	require.NoError(t, err)
	count, third = make(map[string]int), make(map[string]string)
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 {
			continue
		}
		key := strings.Trim(cells[1], " `")
		count[key]++
		third[key] = strings.TrimSpace(cells[3])
	}
	return count, third
}

func TestSpecNamesEachRPCAndState(t *testing.T) {
	count, third := tableRows(t)
	services := pb.File_lockstep_v1alpha1_driver_proto.Services()
	traffic := pb.File_lockstep_v1alpha1_traffic_proto.Services()
	for _, service := range []protoreflect.ServiceDescriptor{services.Get(0), traffic.Get(0)} {
		for i := range service.Methods().Len() {
			name := string(service.Methods().Get(i).Name())
			assert.Equal(t, 1, count[name], "SPEC.md has %d rows for %s, want 1", count[name], name)
		}
	}
	for number, name := range pb.State_name {
		state, short := pb.State(number), strings.TrimPrefix(name, "STATE_")
		if state == pb.State_STATE_UNSPECIFIED {
			continue
		}
		want := map[bool]string{true: "yes", false: "no"}[plugin.Settled(state)]
		assert.True(t, count[short] == 1 && third[short] == want,
			"SPEC.md has %d rows for %s with settled %q, want 1 with %q", count[short], short, third[short], want)
	}
	assert.False(t, plugin.Settled(99), "an unknown state must not count as settled")
}

func TestSpecDefinesEachCount(t *testing.T) {
	rows, _ := tableRows(t)
	// The others are not counted: they are set in the policy or in the spec, and the proto says all about them.
	told := map[protoreflect.Name]bool{"size": true, "batches": true, "current_batch": true, "partition": true}
	fields := (&pb.BatchContext{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if field.Kind() == protoreflect.Int32Kind && !told[field.Name()] && rows[string(field.Name())] != 1 {
			t.Errorf("SPEC.md has %d rows for BatchContext.%s, want 1", rows[string(field.Name())], field.Name())
		}
	}
}
