// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/cmd/crane/cmd"
	"github.com/google/go-containerregistry/pkg/registry"
)

// The commands of the workflow give the tag the image whose digest the chart and the manifests have.
func TestWorkflowPublishesTheImage(t *testing.T) {
	workflow, err := os.ReadFile(filepath.Join("..", "..", ".github", "workflows", "release.yml"))
	if err != nil {
		t.Fatal(err)
	}
	r := &release{
		source: filepath.Join("..", ".."), out: t.TempDir(), version: "v0.1.0-test", platforms: platforms,
		commit: strings.Repeat("a", 40), date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	for _, p := range r.platforms {
		if err := os.WriteFile(filepath.Join(r.out, p.binary()), []byte(p.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	r.image = strings.TrimPrefix(server.URL, "http://") + "/team/lockstep"
	digest, err := r.buildImage()
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]string{"IMAGE": r.image, "GITHUB_REF_NAME": r.version}
	for _, test := range []struct{ command, want string }{{"push", r.image + "@" + digest}, {"digest", digest}} {
		line := regexp.MustCompile(`go run "\$CRANE" (` + test.command + ` [^)\n]*"\$IMAGE:\$GITHUB_REF_NAME")`).FindSubmatch(workflow)
		if line == nil {
			t.Fatalf("the workflow has no command crane %s", test.command)
		}
		args := strings.Fields(strings.ReplaceAll(os.Expand(string(line[1]), func(name string) string { return variables[name] }), `"`, ""))
		for i, arg := range args {
			args[i] = strings.Replace(arg, "dist/", r.out+"/", 1)
		}
		var output bytes.Buffer
		crane := cmd.New("crane", "", nil)
		crane.SetArgs(args)
		crane.SetOut(&output)
		if err := crane.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("crane %v: %v", args, err)
		}
		if got := strings.TrimSpace(output.String()); got != test.want {
			t.Errorf("crane %v prints %s, want %s", args, got, test.want)
		}
	}
}
