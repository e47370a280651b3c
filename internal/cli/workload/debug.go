// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const recordAbout = `Record a driver's observations of a workload and its decisions, as JSON lines on stdout, until the release ends or Ctrl-C. It
changes nothing. A recording shows why a release makes no progress, and lockstep debug replay repeats its decisions, also
with another version.

The driver inside this process decides as the driver at work does from the same observations, but lacks its memory: just
started, it may not know when groups first became ready. To record the driver at work itself, with its callers' requests,
start it with --record FILE, whether in a command, a server or a plugin. Delete the file when you no longer need it.

Pod templates are omitted, and annotations other than Lockstep's replaced by digests: no decision depends on them.`

const replayAbout = `Repeat the decisions of a recording, and show which differ in this version of lockstep; messages are not compared. It
needs no cluster. The exit code is 1 if a decision differs.`

func newDebugCommand(o *connect.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Record a driver's decisions, and replay them",
		RunE: func(_ *cobra.Command, args []string) error {
			return exit.Usagef("lockstep debug needs record or replay, got %q; see lockstep debug --help", args)
		},
	}
	cmd.AddCommand(newRecordCommand(o), newReplayCommand(o))
	return cmd
}

func newRecordCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}
	// Its driver is inside this process, so it has no --address.
	return &cobra.Command{
		Use:               "record NAME",
		Short:             "Record a driver's observations of a workload and its decisions",
		Long:              recordAbout,
		Example:           "  lockstep debug record vllm > vllm.jsonl",
		Args:              session.OneName,
		ValidArgsFunction: session.Names(o),
		RunE: func(cmd *cobra.Command, args []string) error {
			// A recording that ends early ends the command with its cause.
			ctx, end := context.WithCancelCause(cmd.Context())
			defer end(nil)
			cmd.SetContext(ctx)
			inside := *o
			inside.Decided = (&replay.Recorder{To: o.Stdout, Ended: end}).Record
			return f.Run(cmd, &inside, args, recordRelease)
		},
	}
}

// recordRelease follows the workload until a release in flight ends.
func recordRelease(s *session.Session) error {
	ctx, cancel := context.WithCancel(s.Context)
	defer cancel()
	inFlight := false
	return s.Explain(s.Host.Follow(ctx, s.Ref, func(c *pb.BatchContext) {
		before := inFlight
		if inFlight = plugin.InFlight(c); before && !inFlight {
			cancel()
		}
	}), "record")
}

func newReplayCommand(o *connect.Options) *cobra.Command {
	return &cobra.Command{
		Use:     "replay FILE",
		Short:   "Replay a recording, and show the decisions that differ in this version",
		Long:    replayAbout,
		Example: "  lockstep debug replay vllm.jsonl",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return exit.Usagef("%s needs one file, or - for stdin, got %q", cmd.CommandPath(), args)
			}
			text, err := readAll(args[0])
			if err != nil {
				return err
			}
			out := bufio.NewWriter(o.Stdout)
			return errors.Join(replayAll(out, args[0], bytes.NewReader(text)), out.Flush())
		},
	}
}

// replayAll repeats every decision of a recording.
func replayAll(out io.Writer, path string, recording io.Reader) error {
	all, differ := 0, 0
	err := replay.Read(recording, func(line int, e replay.Entry) error {
		all++
		diff, err := e.Replay()
		if err != nil {
			return fmt.Errorf("decision %d: %w", line, err)
		}
		if diff == "" {
			return nil
		}
		differ++
		at := e.Observation.Now.UTC().Format(time.RFC3339)
		fmt.Fprintf(out, "decision %d, %s at %s\n", line, view.OneLine(e.Observation.Key.String()), at)
		_, err = fmt.Fprint(out, view.Printable(diff))
		return err
	})
	switch {
	case err != nil:
		return exit.Usagef("%s: %w", path, err)
	case all == 0:
		return exit.Usagef("%s: no decisions found: want the output of lockstep debug record", path)
	case differ > 0:
		return fmt.Errorf("%d of %d decisions differ in this version", differ, all)
	}
	fmt.Fprintf(out, "%d decisions, all as recorded\n", all)
	return nil
}

// readAll reads a file, or stdin for "-".
func readAll(path string) ([]byte, error) {
	if path == "-" {
		text, err := io.ReadAll(os.Stdin)
		if err != nil {
			return nil, fmt.Errorf("read stdin: %w", err)
		}
		return text, nil
	}
	return os.ReadFile(path)
}
