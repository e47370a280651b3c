// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package output

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/charmbracelet/colorprofile"
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
	// Logs is for log lines, which it keeps out of a table that is redrawn in place.
	Logs io.Writer

	// documents is nil without -o.
	documents *view.Documents
	text      func(host.Event)
	closeText func()
	// last is the event that ended the run. It is shown as text only if the command succeeds: otherwise the error says it.
	last host.Event
}

// NewPrinter returns a printer whose text is on stdout, or on stderr if stdout has documents.
func (f *Flags) NewPrinter(stdout, stderr io.Writer) *Printer {
	p := &Printer{Stdout: stdout, Stderr: stderr, Logs: stderr}
	w := stdout
	if f.Format == view.FormatJSON || f.Format == view.FormatYAML {
		p.documents = view.NewDocuments(stdout, f.Format, f.final)
		w = stderr
	}
	p.Text = Text(w)
	file, ok := Terminal(w)
	if !ok || os.Getenv("TERM") == "dumb" {
		lines := view.NewLines(p.Text, time.Now())
		p.text, p.closeText = lines.Observe, lines.Close
		return p
	}
	live := view.NewLive(p.Text, time.Now(), func() (int, int) { return terminalSize(file) })
	p.text, p.closeText = live.Observe, live.Close
	if _, ok := Terminal(stderr); ok {
		p.Logs = live
	}
	return p
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
	p.text(e)
}

// ShowLast shows the event that ended the run as text.
func (p *Printer) ShowLast() { p.text(p.last) }

// HasDocuments reports whether the output has documents.
func (p *Printer) HasDocuments() bool { return p.documents != nil }

// Status shows a context of a release that this process does not drive, as a document or else as text.
func (p *Printer) Status(c *pb.BatchContext) {
	if p.documents != nil {
		p.documents.Status(c, time.Now())
		return
	}
	p.text(host.Event{Kind: view.EventStatus, Time: time.Now(), Context: c})
}

// Warn shows the warnings of a response.
func (p *Printer) Warn(warnings ...*pb.Warning) {
	for _, w := range warnings {
		_, _ = fmt.Fprintf(p.Stderr, "warning: %s [%s]\n", w.GetMessage(), w.GetCode())
	}
}

// Close ends the display and returns the first error of a document.
func (p *Printer) Close() error {
	p.closeText()
	if p.documents == nil {
		return nil
	}
	return p.documents.Err()
}

// Text returns a writer of text to w. It removes colours as the environment asks for (NO_COLOR, CLICOLOR, TERM), and all escape
// sequences where there is no terminal.
func Text(w io.Writer) io.Writer { return colorprofile.NewWriter(w, os.Environ()) }

// Terminal returns the file behind w, and reports whether it is a terminal.
func Terminal(w io.Writer) (*os.File, bool) {
	file, ok := w.(*os.File)
	return file, ok && term.IsTerminal(int(file.Fd()))
}

// terminalSize returns 0, 0, which means no limit, if the size is unknown.
func terminalSize(file *os.File) (width, height int) {
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}
