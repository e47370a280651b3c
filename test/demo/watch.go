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

	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// sample is how often the requests have a line of their own where there is no terminal to keep one on.
const sample = 5 * time.Second

// releaseUnderLoad runs the release as a program would, and shows what it tells as the command itself does, with the
// requests below.
func (s *stage) releaseUnderLoad(ctx context.Context, args []string) error {
	cmd := s.command(ctx, args...)
	cmd.Args = append(cmd.Args, "-o", "json")
	var problems bytes.Buffer
	cmd.Stderr = &problems
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
		default: // no phase of its own
		}
		show(e)
	})
	failure := cmd.Wait()
	done()
	if failure != nil {
		// Before the error, stderr has for people what the documents have for programs.
		_, text, found := strings.Cut(problems.String(), "lockstep: ")
		if !found {
			text = problems.String()
		}
		return fmt.Errorf("%w: %s", failure, strings.TrimSpace(text))
	}
	return err
}

// follow reads documents to their end.
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

// display is the command's own, with the requests below: a line that is kept on a terminal, and one from time to time elsewhere.
func (s *stage) display() (show func(host.Event), done func()) {
	if file, ok := s.out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		live := view.NewLive(file, time.Now(), func() (int, int) {
			width, height, _ := term.GetSize(int(file.Fd()))
			return width, height
		})
		live.Footer(s.requests.String)
		return live.Observe, live.Close
	}
	lines := view.NewLines(s.out, time.Now())
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
				fmt.Fprintf(s.out, "        %s\n", s.requests)
			}
		}
	}()
	return lines.Observe, func() {
		close(ended)
		<-over
		lines.Close()
	}
}
