// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo shows Lockstep's main job on a real control plane on this machine: it deploys a LeaderWorkerSet of four
// groups, changes its model image, and has `lockstep release` take it through a whole canary release over gRPC. With
// -traffic it does so under real requests, through a gateway, and counts the results; with -node the pods have containers, too, in which
// a small model server streams completions. With -host argo the host is Argo
// Rollouts, and its own kubectl plugin shows the release; with -host kruise it is Kruise Rollouts.
//
// With -kubeconfig it runs on an existing cluster with LeaderWorkerSet: it shows what it will create, asks, and deletes that when it
// ends. It never reads $KUBECONFIG.
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
	// A closed pipe, as in `make demo | head`, must not end the demo before it has deleted what it created.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), signals()...)
	c, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(2)
	}
	code := start(ctx, c)
	stop()
	os.Exit(code)
}

// signals returns the signals that end the demo.
func signals() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} }

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
	switch {
	case c.node:
		return node.Options(1)
	case c.traffic:
		return []cluster.Option{cluster.WithTraefik()}
	}
	return nil
}

type script struct {
	lockstep string
	host     string
	style    string
	batches  string
	pause    string
	keep     bool
	// traffic is true if real requests are sent, node if the pods have containers as well.
	traffic, node bool
	// existing is true if the demo runs on the cluster of kubeconfig and context, yes if it does not ask.
	existing            bool
	kubeconfig, context string
	yes                 bool
	image, newImage     string
}

func parse(args []string) (script, error) {
	var c script
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	flags.StringVar(&c.lockstep, "lockstep", "bin/lockstep", "the lockstep binary")
	flags.StringVar(&c.host, "host", "grpc", "the host: grpc (lockstep release), argo (Argo Rollouts) or kruise (Kruise Rollouts)")
	flags.StringVar(&c.style, "style", "canary", "how to release")
	flags.StringVar(&c.batches, "batches", "25%,50%,100%", "the batches")
	flags.StringVar(&c.pause, "pause", "", "pause between batches (default: 2s, and 5s with traffic)")
	flags.BoolVar(&c.keep, "keep", false, "keep the control plane running afterwards, until Ctrl-C")
	flags.BoolVar(&c.traffic, "traffic", false, "route real requests through a gateway, and count them")
	flags.BoolVar(&c.node, "node", false, "run containers on a real node, and send streaming requests to them; needs root")
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "run on the existing cluster of this kubeconfig, which must have LeaderWorkerSet")
	flags.StringVar(&c.context, "context", "", "with -kubeconfig: its context (default: the current one)")
	flags.BoolVar(&c.yes, "yes", false, "with -kubeconfig: create without asking")
	flags.StringVar(&c.image, "image", "registry.k8s.io/pause:3.10", "with -kubeconfig: the image that the pods run first")
	flags.StringVar(&c.newImage, "new-image", "registry.k8s.io/pause:3.10.1", "with -kubeconfig: the image that is released")
	_ = flags.Parse(args) // ExitOnError
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	c.existing = given["kubeconfig"]
	c.traffic = c.traffic || c.node
	if c.pause == "" {
		c.pause = "2s"
		if c.traffic {
			// Each batch then gets some hundred requests.
			c.pause = "5s"
		}
	}
	return c, c.check(given)
}

// check returns an error if flags contradict each other.
func (c script) check(given map[string]bool) error {
	if c.host != "grpc" && (c.host != "argo" && c.host != "kruise" || c.traffic) {
		return fmt.Errorf("the host is grpc, or argo or kruise without traffic, not %q", c.host)
	}
	if !c.existing {
		for _, flag := range []string{"context", "image", "new-image"} {
			if given[flag] {
				return fmt.Errorf("-%s needs -kubeconfig (with make: KUBECONFIG=FILE on its command line); "+
					"without it the demo runs on a control plane of its own", flag)
			}
		}
		return nil
	}
	const alone = "leave out -kubeconfig (KUBECONFIG=), so that the demo starts a control plane of its own"
	switch {
	case c.kubeconfig == "":
		return errors.New("-kubeconfig (KUBECONFIG=) is empty: give the path of a kubeconfig, or leave it out")
	case c.host != "grpc":
		return fmt.Errorf("-host %s (HOST=%s) would change the installation of its controller in an existing cluster: %s", c.host, c.host, alone)
	case c.traffic:
		return fmt.Errorf("-traffic and -node (TRAFFIC=1, NODE=1) need a gateway whose network the demo controls: %s", alone)
	case c.keep:
		return fmt.Errorf("-keep keeps the demo's own control plane, not an existing cluster: %s", alone)
	case c.image == "" || c.newImage == "" || c.image == c.newImage:
		return fmt.Errorf("-image %q and -new-image %q must be two different images", c.image, c.newImage)
	}
	return nil
}

// scene is a step of the demo.
type scene struct {
	title string
	play  func(context.Context) error
}

// scenes returns the steps of the demo.
func (s *stage) scenes() []scene {
	if s.script.existing {
		return s.existingScenes()
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
	story := []scene{
		{"A real control plane: etcd, API server, controllers, LeaderWorkerSet, and " + nodes, s.raise},
		{"A LeaderWorkerSet: " + pods, s.deploy},
		{"The Lockstep driver, on a unix socket, with the permissions of config/base only", s.serve},
		{"Adopt: from now on a template change moves no group by itself", s.adopt},
		{"A new model image, as from GitOps. No group moves", s.edit},
		{"The release: batch by batch, over gRPC", s.release},
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

// existingScenes returns the scenes on an existing cluster.
func (s *stage) existingScenes() []scene {
	return []scene{
		{"An existing cluster", s.inspect},
		{"A namespace for the demo, and the driver's permissions in it", s.prepare},
		{"A LeaderWorkerSet: 4 groups of 2 pods", s.deploy},
		{"The Lockstep driver, on a unix socket of this machine", s.serve},
		{"Adopt: from now on a template change moves no group by itself", s.adopt},
		{"A new image, as from GitOps. No group moves", s.edit},
		{"The release: batch by batch, over gRPC", s.release},
		{"The result: every group at the new revision, no canary, the hold", s.summary},
	}
}

// run plays all scenes. An interruption is not an error, but objects that are not deleted are.
func run(ctx context.Context, c script, out io.Writer) (err error) {
	s := &stage{script: c, out: out}
	defer func() {
		if ctx.Err() != nil {
			err = nil
		}
		err = errors.Join(err, s.close())
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
