// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command host-go is a host in one file: it launches lockstep as a plugin and takes one workload through a canary release.
// It keeps no state: the next step depends only on the context that the driver sends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var (
	binary     = flag.String("plugin", "bin/lockstep", "the lockstep binary")
	checksum   = flag.String("sha256", "", "its SHA-256; any other binary is refused (required)")
	kubeconfig = flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig for the plugin")
	namespace  = flag.String("namespace", "default", "namespace of the LeaderWorkerSet")
	workload   = flag.String("workload", "", "name of the LeaderWorkerSet (required)")
	batches    = flag.String("batches", "25%,50%,100%", "groups at the new revision after each batch")
	pause      = flag.Duration("pause", 0, "pause between a ready batch and the next one")
	releaseID  = flag.String("release-id", time.Now().UTC().Format("host-go-20060102-150405.000"), "id of the release, to resume one")
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "host-go:", err)
		os.Exit(1)
	}
}

// run launches the plugin and drives the release. It retries calls that fail with a transient error.
func run() error {
	if flag.Parse(); *checksum == "" || *workload == "" {
		return errors.New("--sha256 and --workload are required")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	driver, err := plugin.Launch(ctx, *binary, plugin.LaunchOptions{SHA256: *checksum, Logger: slog.Default(),
		Args: []string{"--kubeconfig", *kubeconfig, "--namespace", *namespace, "--log-level", "warn"}})
	if err != nil {
		return err
	}
	defer func() { _ = driver.Close() }()
	fmt.Printf("driver %s %s, release %s\n", driver.Info().GetName(), driver.Info().GetVersion(), *releaseID)
	h := host{driver: driver, ref: &pb.WorkloadRef{Namespace: *namespace, Name: *workload}}
	for {
		switch err := h.release(ctx); {
		case ctx.Err() != nil:
			return fmt.Errorf("the release stays where it is; resume it with --release-id %s", *releaseID)
		case !plugin.Retryable(err):
			return err
		case plugin.Reason(err) != pb.ErrorReason_ERROR_REASON_NOT_SYNCED:
			fmt.Fprintln(os.Stderr, "host-go: retrying:", err)
		}
		sleep(ctx, 200*time.Millisecond)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

type host struct {
	driver *plugin.Client
	ref    *pb.WorkloadRef
	line   string
}

// release starts or resumes the release, and acts on each of its states until it ends.
func (h *host) release(ctx context.Context) error {
	begin := &pb.InitializeRequest{Workload: h.ref, ReleaseId: *releaseID, Owner: "host-go",
		Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: strings.Split(*batches, ",")}}
	if _, err := h.driver.Initialize(ctx, begin); err != nil {
		return err
	}
	watch := &pb.WatchBatchContextRequest{Workload: h.ref, ReleaseId: *releaseID, IncludeGroups: true}
	for c, err := range h.driver.WatchBatchContext(ctx, watch) {
		if err != nil {
			return err
		}
		h.print(c)
		if over, err := h.act(ctx, c); over || err != nil {
			return err
		}
	}
	return status.Error(codes.Unavailable, "the driver ended the stream")
}

// act makes the call that a state requires, and reports whether the release has ended.
func (h *host) act(ctx context.Context, c *pb.BatchContext) (over bool, err error) {
	end := &pb.FinalizeRequest{Workload: h.ref, ReleaseId: *releaseID, UpdateRevision: c.GetUpdateRevision(),
		Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE}
	switch c.GetState() {
	case pb.State_STATE_COMPLETED, pb.State_STATE_NOTHING_TO_RELEASE:
		return true, nil
	case pb.State_STATE_ROLLED_BACK:
		return true, errors.New("the release was rolled back")
	case pb.State_STATE_FAILED:
		end.Intent = pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
		_, err = h.driver.Finalize(ctx, end)
	case pb.State_STATE_HOLDING:
		err = h.upgrade(ctx, c.GetUpdateRevision(), 0)
	case pb.State_STATE_READY:
		if next := c.GetCurrentBatch() + 1; next < c.GetBatches() {
			sleep(ctx, *pause)
			return false, h.upgrade(ctx, c.GetUpdateRevision(), next)
		}
		_, err = h.driver.Finalize(ctx, end)
	default: // The driver is at work, and will send the next context.
	}
	return false, err
}

// upgrade requests a batch of the revision. The driver refuses if the template has changed.
func (h *host) upgrade(ctx context.Context, revision string, batch int32) error {
	_, err := h.driver.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{Workload: h.ref, ReleaseId: *releaseID,
		UpdateRevision: revision, Target: &pb.UpgradeBatchRequest_Batch{Batch: batch}})
	return err
}

// print prints a line for each change: the state, and a mark per group.
func (h *host) print(c *pb.BatchContext) {
	marks := map[pb.GroupRole]string{}
	for _, g := range c.GetGroups() {
		marks[g.GetRole()] += map[bool]string{true: "#", false: "."}[g.GetReady()]
	}
	line := fmt.Sprintf("%-12s stable %-8s canary %-8s", strings.TrimPrefix(c.GetState().String(), "STATE_"),
		marks[pb.GroupRole_GROUP_ROLE_STABLE], marks[pb.GroupRole_GROUP_ROLE_CANARY])
	if line != h.line {
		fmt.Println(line, c.GetMessage())
	}
	h.line = line
}
