// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/cmd/crane/cmd"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// A release needs the tests of its tag, and what builds it can neither sign nor publish.
func TestWorkflowIsolatesTheBuild(t *testing.T) {
	type job struct {
		Uses        string
		Needs       []string
		Permissions map[string]string
	}
	var release struct {
		Permissions map[string]string
		Jobs        map[string]job
	}
	var tests struct{ On map[string]any }
	for name, into := range map[string]any{"release.yml": &release, "test.yml": &tests} {
		raw, err := os.ReadFile(filepath.Join("..", "..", ".github", "workflows", name))
		if err == nil {
			err = yaml.Unmarshal(raw, into)
		}
		require.NoError(t, err)
	}
	if _, callable := tests.On["workflow_call"]; !callable || release.Jobs["test"].Uses != "./.github/workflows/test.yml" {
		t.Errorf("the tests are %q, callable: %t", release.Jobs["test"].Uses, callable)
	}
	got := release.Jobs["publish"].Needs
	assert.True(t, slices.Contains(got, "test") && slices.Contains(got, "build"), "what is published needs %v", got)
	for name, j := range release.Jobs {
		given := slices.Collect(maps.Values(j.Permissions))
		assert.False(t, name != "publish" && slices.Contains(given, "write"), "job %s may %v", name, j.Permissions)
	}
	assert.False(t, slices.Contains(slices.Collect(maps.Values(release.Permissions)), "write"), "every job may %v", release.Permissions)
}

// The commands of the workflow give the tag the image whose digest the chart and the manifests have.
func TestWorkflowPublishesTheImage(t *testing.T) {
	workflow, err := os.ReadFile(filepath.Join("..", "..", ".github", "workflows", "release.yml"))
	require.NoError(t, err)
	out, layer := t.TempDir(), filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(layer, make([]byte, 1024), 0o600); err != nil { // an empty archive
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	repository := strings.TrimPrefix(server.URL, "http://") + "/team/lockstep"
	i := image{version: "v0.1.0-test", commit: strings.Repeat("a", 40), date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	digest := i.write(filepath.Join(out, "image"), []string{"linux/amd64=" + layer, "linux/arm64=" + layer}).String()
	variables := map[string]string{"IMAGE": repository, "GITHUB_REF_NAME": i.version}
	for _, test := range []struct{ command, want string }{{"push", repository + "@" + digest}, {"digest", digest}} {
		line := regexp.MustCompile(`go run "\$CRANE" (` + test.command + ` [^)\n]*"\$IMAGE:\$GITHUB_REF_NAME")`).FindSubmatch(workflow)
		require.NotNil(t, line, "the workflow has no command crane %s", test.command)
		args := strings.Fields(strings.ReplaceAll(os.Expand(string(line[1]), func(name string) string { return variables[name] }), `"`, ""))
		for i, arg := range args {
			args[i] = strings.Replace(arg, "dist/", out+"/", 1)
		}
		var output bytes.Buffer
		crane := cmd.New("crane", "", nil)
		crane.SetArgs(args)
		crane.SetOut(&output)
		require.NoError(t, crane.ExecuteContext(t.Context()), "crane %v", args)
		assert.Equal(t, test.want, strings.TrimSpace(output.String()), "crane %v prints", args)
	}
}
