// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo shows Lockstep's main job on a real control plane on this machine: it deploys a LeaderWorkerSet of four
// groups, changes its model image, and has `lockstep release` take it through a whole canary release over gRPC. With
// -traffic it does so under real requests, through a gateway, and says what became of each. With -host argo it is Argo
// Rollouts that decides when, and its own kubectl plugin that shows how it goes; with -host kruise it is Kruise Rollouts.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/netns"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	c := parse(os.Args[1:])
	if c.host != "grpc" && (c.host != "argo" && c.host != "kruise" || c.traffic) {
		fmt.Fprintf(os.Stderr, "demo: the host is grpc, or argo or kruise without traffic, not %q\n", c.host)
		os.Exit(2)
	}
	code := start(ctx, c)
	stop()
	os.Exit(code)
}

// start plays the demo: with traffic in a network namespace, where every pod has an address that answers.
func start(ctx context.Context, c script) int {
	play := func() int {
		if err := run(ctx, c, os.Stdout); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			return 1
		}
		return 0
	}
	if !c.traffic {
		return play()
	}
	// The namespace has no network to download from.
	build := func() error { return cluster.Build(ctx, os.Stderr, cluster.WithTraefik()) }
	return netns.Main(build, play, cluster.PodCIDR)
}

type script struct {
	lockstep string
	host     string
	style    string
	batches  string
	pause    string
	keep     bool
	traffic  bool
}

func parse(args []string) script {
	var c script
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	flags.StringVar(&c.lockstep, "lockstep", "bin/lockstep", "the lockstep binary")
	flags.StringVar(&c.host, "host", "grpc", "who decides when: grpc (lockstep release), argo (Argo Rollouts) or kruise (Kruise Rollouts)")
	flags.StringVar(&c.style, "style", "canary", "how to release")
	flags.StringVar(&c.batches, "batches", "25%,50%,100%", "the batches")
	flags.StringVar(&c.pause, "pause", "", "pause between batches (default: 2s, and 5s with traffic)")
	flags.BoolVar(&c.keep, "keep", false, "leave the control plane up afterwards, until Ctrl-C")
	flags.BoolVar(&c.traffic, "traffic", false, "route real requests through a gateway, and count them")
	_ = flags.Parse(args) // ExitOnError
	if c.pause == "" {
		c.pause = "2s"
		if c.traffic {
			// So that each batch gets some hundred requests.
			c.pause = "5s"
		}
	}
	return c
}

// scene is a part of the story.
type scene struct {
	title string
	play  func(context.Context) error
}

// scenes are the story. With traffic, it has a gateway, and an end that counts.
func (s *stage) scenes() []scene {
	switch s.script.host {
	case "argo":
		return s.argoScenes()
	case "kruise":
		return s.kruiseScenes()
	}
	story := []scene{
		{"A real control plane: etcd, API server, controllers, LeaderWorkerSet, and nodes without containers (KWOK)", s.raise},
		{"A LeaderWorkerSet: 4 groups of 2 pods, 1 GPU each", s.deploy},
		{"The Lockstep driver, on a unix socket, with the rights of config/rbac and no more", s.serve},
		{"Adopt: from now on a change of the template moves no group by itself", s.adopt},
		{"A new model image, as GitOps would bring it. Nothing moves", s.edit},
		{"The release: batch by batch, over gRPC", s.release},
		{"What is left: every group at the new revision, no canary, the hold", s.summary},
	}
	if !s.script.traffic {
		return story
	}
	open := scene{fmt.Sprintf("A Service, an HTTPRoute and %d requests per second through a gateway (Traefik)", rate), s.open}
	story = slices.Insert(story, 2, open)
	return append(story, scene{"What became of the requests", s.reckon})
}

// run is the story, told as it happens.
func run(ctx context.Context, c script, out io.Writer) error {
	s := &stage{script: c, out: out}
	defer s.close()
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
