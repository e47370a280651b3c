// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo shows Lockstep's main job on a real control plane on this machine: it deploys a LeaderWorkerSet of four
// groups, changes its model image, and has `lockstep release` take it through a whole canary release over gRPC.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	c := parse(os.Args[1:])
	if err := run(ctx, c, os.Stdout); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		stop()
		os.Exit(1)
	}
}

type script struct {
	lockstep string
	style    string
	batches  string
	pause    string
	keep     bool
}

func parse(args []string) script {
	var c script
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	flags.StringVar(&c.lockstep, "lockstep", "bin/lockstep", "the lockstep binary")
	flags.StringVar(&c.style, "style", "canary", "how to release")
	flags.StringVar(&c.batches, "batches", "25%,50%,100%", "the batches")
	flags.StringVar(&c.pause, "pause", "2s", "pause between batches")
	flags.BoolVar(&c.keep, "keep", false, "leave the control plane up afterwards, until Ctrl-C")
	_ = flags.Parse(args) // ExitOnError
	return c
}

// run is the story, told as it happens.
func run(ctx context.Context, c script, out io.Writer) error {
	s := &stage{script: c, out: out}
	defer s.close()
	for _, scene := range []struct {
		title string
		play  func(context.Context) error
	}{
		{"A real control plane: etcd, API server, controllers, LeaderWorkerSet, and nodes without containers (KWOK)", s.raise},
		{"A LeaderWorkerSet: 4 groups of 2 pods, 1 GPU each", s.deploy},
		{"The Lockstep driver, on a unix socket, with the rights of config/rbac and no more", s.serve},
		{"Adopt: from now on a change of the template moves no group by itself", s.adopt},
		{"A new model image, as GitOps would bring it. Nothing moves", s.edit},
		{"The release: batch by batch, over gRPC", s.release},
		{"What is left: every group at the new revision, no canary, the hold", s.summary},
	} {
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
