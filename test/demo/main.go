// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo shows Lockstep's main job on a real control plane on this machine: it deploys a LeaderWorkerSet of four
// groups, changes its model image, and has `lockstep release` take it through a whole canary release over gRPC. With
// -traffic it does so under real requests, through a gateway, and counts the results; with -node the pods have containers, too, in which
// a small model server streams completions. With -host argo the host is Argo
// Rollouts, and its own kubectl plugin shows the release; with -host kruise it is Kruise Rollouts. With -kind disaggregated the workload is
// a DisaggregatedSet. It never reads $KUBECONFIG: with -kubeconfig it plays in that cluster, in a namespace that it deletes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/netns"
	"github.com/lockstep-rollouts/lockstep/test/node"
)

func main() {
	// Child processes get the cluster by a flag, never from the environment.
	_ = os.Unsetenv(clientcmd.RecommendedConfigPathEnvVar)
	// A closed pipe, as in `make demo | head`, must not end the demo before it has stopped its control plane.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	c, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(2)
	}
	code := start(ctx, c)
	stop()
	os.Exit(code)
}

// start plays the demo. With traffic it does so in a network namespace, where every pod has a reachable address.
func start(ctx context.Context, c script) int {
	play := func() int {
		if err := run(ctx, c, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			return 1
		}
		return 0
	}
	// The namespace has no network to download from.
	build := func() error { return cluster.Build(ctx, os.Stderr, c.options()...) }
	switch {
	case c.node:
		return cluster.MainOnNode(build, play)
	case c.traffic:
		return netns.Main(build, play, cluster.PodCIDR)
	}
	return play()
}

// options returns the options of the demo's own cluster, apart from those for the host.
func (c script) options() []cluster.Option {
	var options []cluster.Option
	switch {
	case c.node:
		options = node.Options(1)
	case c.traffic:
		options = []cluster.Option{cluster.WithTraefik()}
	}
	if c.prebuilt {
		options = append(options, cluster.WithPrebuilt())
	}
	return options
}

type script struct {
	lockstep string
	host     string
	style    string
	kind     string
	batches  string
	pause    string
	keep     bool
	// kubeconfig is that of a cluster at hand. Empty: the demo starts its own.
	kubeconfig string
	// traffic is true if real requests are sent, node if the pods have containers as well.
	traffic, node bool
	// prebuilt is true if Kubernetes' programs may be downloaded.
	prebuilt bool
}

func parse(args []string) (script, error) {
	var c script
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	flags.StringVar(&c.lockstep, "lockstep", "../bin/lockstep", "the lockstep binary")
	flags.StringVar(&c.host, "host", "grpc", "the host: grpc (lockstep release), argo (Argo Rollouts) or kruise (Kruise Rollouts)")
	flags.StringVar(&c.style, "style", "canary", "how to release")
	flags.StringVar(&c.kind, "kind", "leaderworkerset", "what to release: leaderworkerset, or disaggregated (prefill and decode as a DisaggregatedSet)")
	flags.StringVar(&c.batches, "batches", "", "the batches (default: those of lockstep release, or of the host's example)")
	flags.StringVar(&c.pause, "pause", "", "pause between batches (default: 2s, and 5s with traffic)")
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "the kubeconfig of a cluster with LeaderWorkerSet, instead of a control plane of the demo's own")
	flags.BoolVar(&c.keep, "keep", false, "keep the control plane running afterwards, until Ctrl-C")
	flags.BoolVar(&c.traffic, "traffic", false, "route real requests through a gateway, and count them")
	flags.BoolVar(&c.node, "node", false, "run containers on a real node, and send streaming requests to them; needs root")
	flags.BoolVar(&c.prebuilt, "prebuilt", false, "download Kubernetes' official programs instead of building them, if there are any for this machine")
	_ = flags.Parse(args) // ExitOnError
	c.traffic = c.traffic || c.node
	if c.batches == "" {
		// The steps of a Rollout: Kruise's replaces groups in place.
		c.batches = map[string]string{"argo": "1", "kruise": "25%,50%,100%"}[c.host]
	}
	if c.pause == "" {
		c.pause = "2s"
		if c.traffic {
			// Each batch then gets some hundred requests.
			c.pause = "5s"
		}
	}
	if c.kubeconfig != "" && (c.host != "grpc" || c.kind != "leaderworkerset" || c.traffic || c.keep) {
		return c, errors.New("in a cluster at hand (-kubeconfig) the demo releases a leaderworkerset by the host grpc, without traffic, and leaves nothing (no -keep)")
	}
	if c.host != "grpc" && (c.host != "argo" && c.host != "kruise" || c.traffic) {
		return c, fmt.Errorf("the host is grpc, or argo or kruise without traffic, not %q", c.host)
	}
	if c.kind != "leaderworkerset" && (c.kind != "disaggregated" || c.host != "grpc" || c.traffic) {
		return c, fmt.Errorf("the kind is leaderworkerset, or disaggregated with the host grpc and without traffic, not %q", c.kind)
	}
	return c, nil
}

// scene is a step of the demo.
type scene struct {
	title string
	play  func(context.Context) error
}

// scenes returns the steps of the demo.
func (s *stage) scenes() []scene {
	switch {
	case s.script.kubeconfig != "":
		return s.scenesAtHand()
	case s.script.kind == "disaggregated":
		return s.setScenes()
	}
	switch s.script.host {
	case "argo":
		return s.argoScenes()
	case "kruise":
		return s.kruiseScenes()
	}
	nodes, pods := "nodes without containers (KWOK)", "4 groups of 2 pods, 1 GPU each"
	if s.script.node {
		nodes, pods = "a node: kubelet, containerd, runc", "4 groups of 2 containers, a model server without a model"
	}
	course := "batch by batch"
	if s.script.batches == "1" {
		course = "one canary group, a pause, then all"
	}
	story := []scene{
		{"A real control plane: etcd, API server, controllers, LeaderWorkerSet, and " + nodes, s.raise},
		{"A LeaderWorkerSet: " + pods, s.deploy},
		{"The Lockstep driver, on a unix socket, with the permissions of config/base only", s.serve},
		{"Adopt: from now on a template change moves no group by itself", s.adopt},
		{"A new model image, as from GitOps. No group moves", s.edit},
		{"The release: " + course + ", over gRPC", s.release},
		{"The result: every group at the new revision, no canary, the hold", s.summary},
	}
	if !s.script.traffic {
		return story
	}
	kind := "requests"
	if s.script.node {
		kind = "streaming requests"
	}
	open := scene{fmt.Sprintf("A Service, an HTTPRoute and %d %s per second through a gateway (Traefik)", rate, kind), s.open}
	story = slices.Insert(story, 2, open)
	return append(story, scene{"The requests", s.reportRequests})
}

// run plays all scenes. An interruption is not an error.
func run(ctx context.Context, c script, out io.Writer) (err error) {
	s := &stage{script: c, out: out}
	defer s.close()
	defer func() {
		if ctx.Err() != nil {
			err = nil
		}
	}()
	for _, scene := range s.scenes() {
		fmt.Fprintf(out, "\n== %s\n", scene.title)
		if err := scene.play(ctx); err != nil {
			return fmt.Errorf("%s: %w", scene.title, err)
		}
	}
	if !c.keep {
		return nil
	}
	fmt.Fprintf(out, "\nexport KUBECONFIG=%s\nCtrl-C ends it.\n", s.cluster.Kubeconfig())
	<-ctx.Done()
	return nil
}
