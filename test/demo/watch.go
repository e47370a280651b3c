// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// sample is the interval of lines about requests.
const sample = 5 * time.Second

// releaseUnderLoad runs the release with JSON output, and shows its events like the command itself, with the requests.
func (s *stage) releaseUnderLoad(ctx context.Context, args []string) error {
	cmd := s.command(ctx, args...)
	cmd.Args = append(cmd.Args, "-o", "json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	documents, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("read the release's events: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	show, done := s.display()
	err = follow(documents, func(e host.Event) {
		switch e.Kind {
		case host.EventBatchStarted, host.EventBatchReady, host.EventPromoting, host.EventRollingBack:
			s.requests.phase(e.Message)
		default: // not a phase
		}
		show(e)
	})
	failure := cmd.Wait()
	done()
	if failure != nil {
		// Before the error stderr has the events as text.
		_, text, found := strings.Cut(stderr.String(), "lockstep: ")
		if !found {
			text = stderr.String()
		}
		return fmt.Errorf("%w: %s", failure, strings.TrimSpace(text))
	}
	return err
}

// follow calls observe for each document.
func follow(documents io.Reader, observe func(host.Event)) error {
	for d := json.NewDecoder(documents); ; {
		var document view.Document
		if err := d.Decode(&document); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the release's events: %w", err)
		}
		e := host.Event{
			Kind: host.EventKind(document.Event), Time: document.Time, Message: document.Message, Outcome: host.Outcome(document.Outcome),
		}
		if len(document.Context) > 0 {
			e.Context = &pb.BatchContext{}
			if err := protojson.Unmarshal(document.Context, e.Context); err != nil {
				return fmt.Errorf("read the release's context: %w", err)
			}
		}
		observe(e)
	}
}

// display is that of the command, with a line about the requests from time to time.
func (s *stage) display() (show func(host.Event), done func()) {
	printer := output.NewPrinter(s.out, os.Stderr, "", false)
	lines := s.out
	if printer.Logs != os.Stderr {
		lines = printer.Logs // above the status that is redrawn
	}
	ended, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		ticker := time.NewTicker(sample)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				fmt.Fprintf(lines, "        %s\n", s.requests)
			}
		}
	}()
	return printer.Observe, func() {
		close(ended)
		<-over
		printer.ShowLast()
		_ = printer.Close() // it has no documents
	}
}
