// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/internal/picture"
)

const pictureAbout = `Draw a past release as SVG, from its documents: the output of lockstep release -o json (or yaml), or for another host's release
of lockstep status -w -o json. It needs no cluster. Measurements of gates are dots, green if they passed. What was not
recorded is missing.

Of several releases in the file it draws the last. For a release that was interrupted and continues, append (>>) the
documents of the second run to those of the first.`

func newPictureCommand(o *connect.Options) *cobra.Command {
	return &cobra.Command{
		Use:     "picture FILE",
		Short:   "Draw a past release from its recorded documents",
		Long:    pictureAbout,
		Example: "  lockstep release vllm --batches 25%,100% -o json > vllm.json\n  lockstep picture vllm.json > vllm.svg",
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readOne(cmd, args)
			if err != nil {
				return err
			}
			return drawRecording(o.Stdout, args[0], bytes.NewReader(text))
		},
	}
}

func drawRecording(out io.Writer, path string, recording io.Reader) error {
	documents, err := view.ReadDocuments(recording)
	if err != nil {
		return exit.Usagef("%s: %w", path, err)
	}
	moments := make([]picture.Moment, 0, len(documents))
	title := ""
	seen := map[string]time.Time{}
	for _, d := range documents {
		c, err := d.BatchContext()
		if err != nil {
			return exit.Usagef("%s: %w", path, err)
		}
		if c.GetReleaseId() != "" {
			title = fmt.Sprintf("%s/%s: %s", c.GetWorkload().GetNamespace(), c.GetWorkload().GetName(), c.GetReleaseId())
		}
		moments = append(moments, picture.Moment{At: d.Time, Context: c, Measured: newMeasurements(d.Gates, seen)})
	}
	svg, err := picture.Recording(title, moments)
	if errors.Is(err, picture.ErrNothingRecorded) {
		return exit.Usagef("%s: %w: want the output of lockstep release -o json, without --final", path, err)
	}
	if err == nil {
		_, err = out.Write(svg)
	}
	if err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	return nil
}

// newMeasurements returns the measurements that are newer than those that were seen before, by gate.
func newMeasurements(results []gate.Result, seen map[string]time.Time) []picture.Measurement {
	var all []picture.Measurement
	for _, r := range results {
		if !r.Time.Equal(seen[r.Name]) && r.Measured > 0 {
			all = append(all, picture.Measurement{Gate: r.Name, Passed: r.Value != nil && r.Passes(*r.Value), Message: r.Message})
		}
		seen[r.Name] = r.Time
	}
	return all
}
