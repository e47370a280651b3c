// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"
	"sigs.k8s.io/yaml"
)

//go:embed existing.yaml
var existingWorkload []byte

const (
	// runLabel of the demo's namespace has a value that is unique to this run. Namespaces without it are never deleted.
	runLabel = "demo.lockstep.dev/run"
	// answerTime bounds requests to the API server.
	answerTime = 15 * time.Second
)

// existing is a cluster that the user chose. The demo creates one namespace, and everything else in it.
type existing struct {
	kubeconfig string
	// raw has only the context that is used, with embedded certificates.
	raw  *clientcmdapi.Config
	rest *rest.Config
	core kubernetes.Interface
	sets lwsclient.Interface

	namespace, run string
	// attempted is true once the demo has requested the namespace, whatever the response.
	attempted bool
	// ownPermissions is true if the driver uses the user's permissions, since the user may not create roles.
	ownPermissions bool
}

// openExisting reads a context of a kubeconfig. It ignores $KUBECONFIG, ~/.kube/config and a pod's account.
func openExisting(kubeconfig, contextName string) (*existing, error) {
	if kubeconfig == "" {
		return nil, errors.New("the kubeconfig's path is empty: give KUBECONFIG=FILE (-kubeconfig FILE)")
	}
	raw, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w; give the path of one file", err)
	}
	if contextName == "" {
		contextName = raw.CurrentContext
	}
	if contextName == "" {
		return nil, fmt.Errorf("kubeconfig %s has no current context: give CONTEXT=NAME (-context NAME)", kubeconfig)
	}
	if raw.Contexts[contextName] == nil {
		return nil, fmt.Errorf("kubeconfig %s has no context %q: see kubectl config get-contexts --kubeconfig %s", kubeconfig, contextName, kubeconfig)
	}
	raw.CurrentContext = contextName
	if err := errors.Join(clientcmd.ResolveLocalPaths(raw), clientcmdapi.MinifyConfig(raw), clientcmdapi.FlattenConfig(raw)); err != nil {
		return nil, fmt.Errorf("read context %q of kubeconfig %s: %w", contextName, kubeconfig, err)
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*raw, contextName, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("use context %q of kubeconfig %s: %w", contextName, kubeconfig, err)
	}
	config.UserAgent = "lockstep-demo"
	e := &existing{kubeconfig: kubeconfig, raw: raw, rest: config, namespace: "lockstep-demo-" + rand.String(5), run: rand.String(10)}
	if e.core, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	if e.sets, err = lwsclient.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return e, nil
}

// check returns the version of Kubernetes, or an error if the demo can't run on the cluster. It writes nothing.
func (e *existing) check(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTime)
	defer cancel()
	config := rest.CopyConfig(e.rest)
	config.Timeout = answerTime
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return "", fmt.Errorf("create client: %w", err)
	}
	server, err := client.ServerVersion()
	if err != nil {
		return "", fmt.Errorf("the API server %s does not answer: %w", e.rest.Host, err)
	}
	if err := checkLWS(client); err != nil {
		return "", err
	}
	e.ownPermissions, err = checkPermissions(ctx, e.core.AuthorizationV1(), e.namespace)
	return server.GitVersion, err
}

// checkLWS returns an error if LWS is missing, or if its CRD is older than v0.9.0. A controller that is older than its CRD is
// detected later, like in the driver, by the status of the demo's workload.
func checkLWS(client discovery.DiscoveryInterface) error {
	_, err := client.ServerResourcesForGroupVersion(lws.GroupVersion.String())
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("LeaderWorkerSet (%s) is not installed in this cluster: install LWS v0.9.0 or later", lws.GroupVersion)
	}
	if err != nil {
		return fmt.Errorf("discover %s: %w", lws.GroupVersion, err)
	}
	paths, err := client.OpenAPIV3().Paths()
	if err != nil {
		return fmt.Errorf("read the API server's OpenAPI paths: %w", err)
	}
	group, ok := paths["apis/"+lws.GroupVersion.String()]
	if !ok {
		return nil // the schema of a new CRD is published later
	}
	text, err := group.Schema("application/json")
	if err != nil {
		return fmt.Errorf("read the schema of %s: %w", lws.GroupVersion, err)
	}
	reports, err := reportsGeneration(text)
	if err != nil {
		return fmt.Errorf("read the schema of %s: %w", lws.GroupVersion, err)
	}
	if !reports {
		return errTooOld
	}
	return nil
}

var errTooOld = errors.New("LeaderWorkerSet does not report status.observedGeneration, so it is older than v0.9.0: " +
	"upgrade LWS and its CRDs to v0.9.0 or later")

// reportsGeneration reports whether an OpenAPI document has status.observedGeneration of LeaderWorkerSets.
func reportsGeneration(document []byte) (bool, error) {
	type kind struct {
		Kind string `json:"kind"`
	}
	type properties map[string]json.RawMessage
	var schema struct {
		Components struct {
			Schemas map[string]struct {
				Kinds      []kind     `json:"x-kubernetes-group-version-kind"`
				Properties properties `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(document, &schema); err != nil {
		return false, err
	}
	for _, s := range schema.Components.Schemas {
		if len(s.Kinds) != 1 || s.Kinds[0].Kind != "LeaderWorkerSet" {
			continue
		}
		var status struct {
			Properties properties `json:"properties"`
		}
		if err := json.Unmarshal(s.Properties["status"], &status); err != nil {
			return false, err
		}
		return status.Properties["observedGeneration"] != nil, nil
	}
	return false, errors.New("it has no LeaderWorkerSet")
}

// describe writes the cluster, and what the demo creates on it.
func (e *existing) describe(w io.Writer, version string, c script) {
	permissions := `  ServiceAccount, Role and RoleBinding %[1]s
      the rules of config/base, in this namespace only, for the driver, which runs on this machine.
      If the API server refuses them to you, the driver uses your own permissions.
`
	if e.ownPermissions {
		permissions = "The driver, which runs on this machine, uses your own permissions: you may not create roles in the cluster.\n"
	}
	pods := 8
	if c.style != "partition" {
		pods = 16 // a second set of groups beside the first
	}
	fmt.Fprintf(w, `context     %s
server      %s
Kubernetes  %s

The demo creates, and deletes when it ends, also by Ctrl-C:
  Namespace %s, and in it:
  LeaderWorkerSet %s: 4 groups of 2 pods, at most %d pods during the release
      image %s, then %s; no GPUs, 10m CPU and 16Mi memory per pod
      with the StatefulSets, Pods, Services, ControllerRevisions and Events of LWS and Lockstep
`, e.raw.CurrentContext, e.rest.Host, version, e.namespace, name, pods, c.image, c.newImage)
	fmt.Fprintf(w, permissions, accessName)
}

// target returns the name of the cluster for messages.
func (e *existing) target() string { return fmt.Sprintf("%s (%s)", e.raw.CurrentContext, e.rest.Host) }

// question is a question to the user.
type question struct {
	in  io.Reader
	out io.Writer
	// terminal is true if in is one.
	terminal bool
	// yes answers every question.
	yes bool
}

// onTerminal returns a question on standard input.
func onTerminal(out io.Writer, yes bool) question {
	return question{in: os.Stdin, out: out, terminal: term.IsTerminal(int(os.Stdin.Fd())), yes: yes}
}

// confirm returns nil if the answer is yes, and an error otherwise.
func (q question) confirm(ctx context.Context, text string) error {
	if q.yes {
		return nil
	}
	if !q.terminal {
		return errors.New("standard input is not a terminal, so the demo can't ask for your consent and has created nothing: add YES=1 (-yes)")
	}
	fmt.Fprintf(q.out, "\n%s [y/N] ", text)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(q.in).ReadString('\n') // empty without an answer
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
		return errors.New("you did not answer yes: the demo has created nothing")
	}
}

// createNamespace creates the demo's namespace. Ctrl-C does not cancel the request, so that its result is known.
func (e *existing) createNamespace(ctx context.Context) error {
	e.attempted = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:        e.namespace,
		Labels:      map[string]string{runLabel: e.run},
		Annotations: map[string]string{"demo.lockstep.dev/description": "created by make demo of Lockstep, which deletes it when it ends"},
	}}
	if _, err := e.core.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", e.namespace, err)
	}
	return nil
}

// createWorkload creates the LeaderWorkerSet at the old image.
func (e *existing) createWorkload(ctx context.Context, image string) error {
	w := &lws.LeaderWorkerSet{}
	if err := yaml.UnmarshalStrict(existingWorkload, w); err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	templates := &w.Spec.LeaderWorkerTemplate
	templates.LeaderTemplate.Spec.Containers[0].Image = image
	templates.WorkerTemplate.Spec.Containers[0].Image = image
	if _, err := e.sets.LeaderworkersetV1().LeaderWorkerSets(e.namespace).Create(ctx, w, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create LeaderWorkerSet %s/%s: %w", e.namespace, name, err)
	}
	return nil
}
