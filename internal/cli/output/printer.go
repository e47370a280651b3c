// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package output writes the results and the progress of commands: text for terminals and logs, documents for programs.
//
//	var flags output.Flags
//	flags.Add(cmd) // -o
//	printer := flags.NewPrinter(os.Stdout, os.Stderr)
//	h := &host.Host{Driver: client, Observe: printer.Observe}
package output

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Printer shows the events of one run of a host, as text and as documents.
type Printer struct {
	// Stdout gets results, Stderr warnings.
	Stdout, Stderr io.Writer
	// Text writes text to Stdout, or to Stderr if Stdout gets documents; see the function.
	Text io.Writer
	// Logs is for log lines, which it keeps out of a status that is redrawn in place.
	Logs io.Writer

	// documents is nil without -o.
	documents *view.Documents
	display   Display
	// last is the event that ended the run. It is shown as text only if the command succeeds: otherwise the error says it.
	last host.Event
}

// NewPrinter returns a printer whose text is on stdout, or on stderr if stdout has documents.
func (f *Flags) NewPrinter(stdout, stderr io.Writer) *Printer {
	p := &Printer{Stdout: stdout, Stderr: stderr}
	w := stdout
	if f.Format != "" {
		p.documents = view.NewDocuments(stdout, f.Format)
		w = stderr
	}
	p.Text = Text(w)
	p.display, p.Logs = NewDisplay(w, stderr, false)
	return p
}

// Display shows events as text.
type Display interface {
	Observe(e host.Event)
	// End shows the last event of a workload.
	End(e host.Event)
	Close()
}

// NewDisplay returns a display: redrawn in place on a terminal that can do that, and a line for each change elsewhere, which begins with the
// workload's name if it is named. Log lines have to be written to logs.
func NewDisplay(w, stderr io.Writer, named bool) (display Display, logs io.Writer) {
	file, ok := Terminal(w)
	if !ok || dumb() {
		return view.NewLines(Text(w), time.Now(), named), stderr
	}
	live := view.NewLive(Text(w), time.Now(), func() int { return terminalHeight(file) })
	// Log lines must go through the display only if both are the same terminal.
	if _, ok := Terminal(stderr); ok {
		return live, live
	}
	return live, stderr
}

// Observe shows an event of the run, the last one in documents only.
func (p *Printer) Observe(e host.Event) {
	if p.documents != nil {
		p.documents.Observe(e)
	}
	if e.Kind == host.EventFinished {
		p.last = e
		return
	}
	p.display.Observe(e)
}

// ShowLast shows the event that ended the run as text.
func (p *Printer) ShowLast() { p.display.Observe(p.last) }

// HasDocuments reports whether the output has documents.
func (p *Printer) HasDocuments() bool { return p.documents != nil }

// Status shows a context of a release that this process does not drive, as a document or else as text.
func (p *Printer) Status(c *pb.BatchContext) {
	if p.documents != nil {
		p.documents.Observe(view.StatusEvent(c))
		return
	}
	p.display.Observe(view.StatusEvent(c))
}

// Warn shows the warnings of a response.
func (p *Printer) Warn(warnings ...*pb.Warning) {
	for _, w := range warnings {
		_, _ = fmt.Fprintf(p.Stderr, "warning: %s [%s]\n", w.GetMessage(), w.GetCode())
	}
}

// Close ends the display and returns the first error of a document.
func (p *Printer) Close() error {
	p.display.Close()
	if p.documents == nil {
		return nil
	}
	return p.documents.Err()
}

// Text returns a writer of text to w, which gets whole strings. It removes colours with NO_COLOR or TERM=dumb and where there is no
// terminal.
func Text(w io.Writer) io.Writer {
	if _, ok := Terminal(w); ok && os.Getenv("NO_COLOR") == "" && !dumb() {
		return w
	}
	return plain{w}
}

// plain removes colours.
type plain struct{ w io.Writer }

// Write implements io.Writer.
func (t plain) Write(p []byte) (int, error) {
	if _, err := io.WriteString(t.w, view.Plain(string(p))); err != nil {
		return 0, err //nolint:wrapcheck // it is the writer's own
	}
	return len(p), nil
}

// dumb reports whether the terminal knows no escape sequences.
func dumb() bool { return os.Getenv("TERM") == "" || os.Getenv("TERM") == "dumb" }

// Terminal returns the file behind w, and reports whether it is a terminal.
func Terminal(w io.Writer) (*os.File, bool) {
	file, ok := w.(*os.File)
	return file, ok && term.IsTerminal(int(file.Fd()))
}

// terminalHeight returns 0, which means no limit, if the height is unknown.
func terminalHeight(file *os.File) int {
	_, height, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return height
}

// Flags choose the format of a command's output.
type Flags struct {
	// Format is the value of -o. Empty means text.
	Format view.Format
}

// Add registers -o.
func (f *Flags) Add(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(&f.Format), "output", "o", "", "write json (one object per line) or yaml documents to stdout, text to stderr")
	formats := []string{string(view.FormatJSON), string(view.FormatYAML)}
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
}

// Check returns an error for an unknown format.
func (f *Flags) Check() error {
	if f.Format != "" && f.Format != view.FormatJSON && f.Format != view.FormatYAML {
		return exit.Usagef("--output %q: want json or yaml", f.Format)
	}
	return nil
}
