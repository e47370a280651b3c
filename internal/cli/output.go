// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
)

// outputFlags say how a command shows what happens.
type outputFlags struct {
	format string
	final  bool
}

// add registers -o, and --final for commands that have more than one document to write.
func (f *outputFlags) add(cmd *cobra.Command, final bool) {
	cmd.Flags().StringVarP(&f.format, "output", "o", "",
		"write json (one object per line) or yaml documents to stdout, and what is for people to stderr")
	complete(cmd, "output", string(view.FormatJSON), string(view.FormatYAML))
	if final {
		cmd.Flags().BoolVar(&f.final, "final", false, "with -o: only the last document")
	}
}

func (f *outputFlags) check() error {
	switch view.Format(f.format) {
	case "":
		if f.final {
			return usageErrorf("--final needs -o json or -o yaml")
		}
		return nil
	case view.FormatJSON, view.FormatYAML:
		return nil
	default:
		return usageErrorf("--output %q: want json or yaml", f.format)
	}
}

// complete makes the shell offer values for a flag. A flag that is not there is a defect, which the tests would see.
func complete(cmd *cobra.Command, flag string, values ...string) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// printer shows one run of a host, to people and to programs.
type printer struct {
	// documents is nil without -o.
	documents *view.Documents
	people    func(host.Event)
	// logs is where log lines go without tearing the table.
	logs  io.Writer
	close func()
	// last is the event that ended the run, which people are told only if it is what they asked for: otherwise the
	// command's error tells them.
	last host.Event
}

// newPrinter shows progress on stdout, or on stderr if stdout carries documents.
func (f *outputFlags) newPrinter(o *options) *printer {
	p := &printer{logs: o.stderr, close: func() {}}
	w := o.stdout
	if f.format != "" {
		p.documents = view.NewDocuments(o.stdout, view.Format(f.format), f.final)
		w = o.stderr
	}
	if file, ok := terminal(w); ok {
		live := view.NewLive(file, time.Now(), func() (int, int) { return terminalSize(file) })
		p.people, p.close = live.Observe, live.Close
		if _, ok := terminal(o.stderr); ok {
			p.logs = live
		}
		return p
	}
	lines := view.NewLines(w, time.Now())
	p.people, p.close = lines.Observe, lines.Close
	return p
}

func (p *printer) observe(e host.Event) {
	if p.documents != nil {
		p.documents.Observe(e)
	}
	if e.Kind == host.EventFinished {
		p.last = e
		return
	}
	p.people(e)
}

// finish ends the display and returns the first error of a document.
func (p *printer) finish() error {
	p.close()
	if p.documents == nil {
		return nil
	}
	return p.documents.Err()
}

// terminal says whether w is one.
func terminal(w io.Writer) (*os.File, bool) {
	file, ok := w.(*os.File)
	return file, ok && term.IsTerminal(int(file.Fd()))
}

// terminalSize is 0, 0 where it can't be told, which means no limit.
func terminalSize(file *os.File) (width, height int) {
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}

// writeMessage writes an answer of the contract for programs, as it is.
func writeMessage(w io.Writer, m proto.Message, format view.Format) error {
	text, err := protojson.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return writeJSON(w, text, format)
}

// writeDocument writes a document of the program's own for programs.
func writeDocument(w io.Writer, document any, format view.Format) error {
	text, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("encode %T: %w", document, err)
	}
	return writeJSON(w, text, format)
}

// writeJSON writes one JSON document as a line, or as YAML.
func writeJSON(w io.Writer, text []byte, format view.Format) (err error) {
	if format == view.FormatYAML {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return fmt.Errorf("encode YAML: %w", err)
		}
	} else {
		text = append(text, '\n')
	}
	_, err = w.Write(text)
	return err //nolint:wrapcheck // the caller's own stream
}
