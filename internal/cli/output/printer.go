// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package output writes the results and the progress of commands: text for terminals and logs, documents for programs.
//
//	var format view.Format
//	output.AddFormat(cmd, &format) // -o
//	printer := output.NewPrinter(os.Stdout, os.Stderr, format, false)
//	h := &host.Host{Driver: client, Observe: printer.Observe}
package output

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

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
	display   display
	// last is the event that ended the run. It is shown as text only if the command succeeds: otherwise the error says it.
	last host.Event
}

// NewPrinter returns a printer whose text is on stdout, or on stderr if stdout has documents. Lines of text begin with the workload's name if
// they are named.
func NewPrinter(stdout, stderr io.Writer, format view.Format, named bool) *Printer {
	p := &Printer{Stdout: stdout, Stderr: stderr}
	w := stdout
	if format != "" {
		p.documents = view.NewDocuments(stdout, format)
		w = stderr
	}
	p.Text = Text(w)
	p.display, p.Logs = newDisplay(w, stderr, named)
	return p
}

// display shows events as text.
type display interface {
	Observe(e host.Event)
	// End shows the last event of a workload.
	End(e host.Event)
	Close()
}

// newDisplay returns a display: redrawn in place on a terminal that can do that, and a line for each change elsewhere. Log lines have to be
// written to logs.
func newDisplay(w, stderr io.Writer, named bool) (_ display, logs io.Writer) {
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

// End shows the last event of a workload that is not followed any more.
func (p *Printer) End(e host.Event) {
	if p.documents != nil {
		p.documents.Observe(e)
	}
	p.display.End(e)
}

// Document writes the context of a workload. The output must have documents.
func (p *Printer) Document(c *pb.BatchContext) { p.documents.Observe(view.StatusEvent(c)) }

// Warn shows the warnings of a response.
func (p *Printer) Warn(warnings ...*pb.Warning) {
	for _, w := range warnings {
		_, _ = fmt.Fprintf(p.Stderr, "warning: %s [%s]\n", view.OneLine(w.GetMessage()), w.GetCode())
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

// AddFormat registers -o. Empty means text.
func AddFormat(cmd *cobra.Command, format *view.Format) {
	AddChoice(cmd, format, "output", "o", "write json (one object per line) or yaml documents to stdout, text to stderr", view.FormatJSON, view.FormatYAML)
}

// AddChoice registers a flag that is one of some values, which the shell completes. Its default is what to has.
func AddChoice[T ~string](cmd *cobra.Command, to *T, name, short, usage string, values ...T) {
	c := choice[T]{to, values}
	cmd.Flags().VarP(c, name, short, usage)
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.words(), cobra.ShellCompDirectiveNoFileComp)))
}

// choice is the value of a flag.
type choice[T ~string] struct {
	to     *T
	values []T
}

// String returns the value.
func (c choice[T]) String() string { return string(*c.to) }

// Type is that of a text in the help.
func (c choice[T]) Type() string { return "string" }

// Set sets the value to one of the choice.
func (c choice[T]) Set(text string) error {
	if !slices.Contains(c.values, T(text)) {
		return fmt.Errorf("want %s", strings.Join(c.words(), " or "))
	}
	*c.to = T(text)
	return nil
}

func (c choice[T]) words() []string {
	words := make([]string, 0, len(c.values))
	for _, v := range c.values {
		words = append(words, string(v))
	}
	return words
}
