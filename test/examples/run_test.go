// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package examples

import (
	"context"
	"errors"
	"maps"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// release runs a script, changes the image, and runs the script again, as in examples/README.md.
func (e *env) release(script string) {
	e.T.Helper()
	assert.Contains(e.T, e.run(script), "NOTHING_TO_RELEASE", "with an unchanged template it printed")
	pods := e.pods()
	e.mustRest("v1")
	e.edit("v2", nil)
	assert.Contains(e.T, e.run(script), "COMPLETED", "a release ended with")
	e.mustRest("v2")
	for name, uid := range e.pods() {
		assert.NotEqual(e.T, uid, pods[name], "pod %s was not replaced", name)
	}
}

// begin starts a release to a template whose pods never become ready, and waits until its first batch has started.
func (e *env) begin(script, tag string) *process {
	e.T.Helper()
	pods := e.pods()
	e.edit(tag, map[string]string{cluster.AnnotationBehavior: cluster.BehaviorNeverReady})
	p := e.start(script)
	e.Eventually("the first batch has started", func(context.Context) error {
		if len(e.pods()) == len(pods) {
			return errors.New("no pod was added")
		}
		return nil
	})
	return p
}

// follows checks that a host releases a template that replaces the first one during the release.
func (e *env) follows(script string) {
	e.T.Helper()
	p := e.begin(script, "v3")
	e.edit("v4", nil)
	if err := p.wait(); err != nil {
		e.T.Fatalf("the template changed in mid-release: %v: %s", err, p.text())
	}
	e.mustRest("v4")
}

// yields checks that a host reports that its release was aborted, and exits.
func (e *env) yields(script string) {
	e.T.Helper()
	pods := e.pods()
	p := e.begin(script, "v5")
	e.run(e.block("grpcurl", "--abort"))
	if err := p.wait(); err == nil || !strings.Contains(p.text(), "was rolled back") {
		e.T.Errorf("an aborted release ended with %v: %s", err, p.text())
	}
	e.mustRest("v4")
	now := e.pods()
	assert.True(e.T, maps.Equal(now, pods), "an aborted release has replaced pods of the workload: %v, were %v", now, pods)
}

// Proves (test): Examples: grpcurl and the Go host.
func TestGrpcurl(t *testing.T) {
	e := newEnv(t)
	e.serve("grpcurl")
	e.release(e.block("grpcurl", "25%"))
}

// A release can be aborted after its host has exited.
//
// Proves: Examples: Node.js; aborts and template changes with grpcurl.
func TestGrpcurlAbort(t *testing.T) {
	e := newEnv(t)
	e.serve("grpcurl")
	script := e.block("grpcurl", "25%")
	e.run(script)
	pods := e.pods()
	p := e.begin(script, "v2")
	p.stop()
	_ = p.wait()
	assert.Contains(t, e.run(e.block("grpcurl", "--abort")), "ROLLED_BACK", "abort ended with")
	e.mustRest("v1")
	now := e.pods()
	assert.True(t, maps.Equal(now, pods), "an aborted release has replaced pods of the workload: %v, were %v", now, pods)
}

// After another template change the script continues only when the user runs it again.
//
// Proves: Examples: Node.js; aborts and template changes with grpcurl.
func TestGrpcurlTemplateChange(t *testing.T) {
	e := newEnv(t)
	e.serve("grpcurl")
	script := "export RELEASE_ID=r1\n" + e.block("grpcurl", "25%")
	e.run(e.block("grpcurl", "25%"))
	p := e.begin(script, "v2")
	e.edit("v3", nil)
	if err := p.wait(); err == nil || !strings.Contains(p.text(), "to resume:    RELEASE_ID=r1 ") {
		t.Errorf("a changed template ended the script with %v: %s", err, p.text())
	}
	assert.Contains(t, e.run(script), "COMPLETED", "a resumed release ended with")
	e.mustRest("v3")
}

// Proves (test): Examples: grpcurl and the Go host.
func TestHostGo(t *testing.T) {
	e := newEnv(t)
	script := e.block("host-go", "go run")
	e.release(script)
	e.follows(script)
}

// Proves: Examples: Node.js; aborts and template changes with grpcurl.
func TestHostNode(t *testing.T) {
	for _, tool := range []string{"node", "npm"} {
		_, err := exec.LookPath(tool)
		require.NoError(t, err, "%s is not installed, and examples/host-node needs it: on Debian and Ubuntu, apt-get install nodejs npm "+
			"(Node 18 or later; .ci/run does that)", tool)
	}
	e := newEnv(t)
	e.run(e.block("host-node", "npm --prefix examples/host-node ci"))
	e.serve("host-node")
	script := e.block("host-node", "start")
	e.release(script)
	e.follows(script)
	e.yields(script)
}
