// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/internal/host"
)

// Document is the JSON or YAML form of an event.
type Document struct {
	// Event is a host.EventKind, or one of this package.
	Event string `json:"event"`
	// Time is when it happened.
	Time time.Time `json:"time"`
	// Message is a sentence.
	Message string `json:"message,omitempty"`
	// Outcome is a host.Outcome, with the event "finished" only.
	Outcome string `json:"outcome,omitempty"`
	// Gates is the state of each gate for the batch, with the events "gates" and "gate-failed" only.
	Gates []gate.Result `json:"gates,omitempty"`
	// Context is a lockstep.v1alpha1.BatchContext in ProtoJSON, with zero values.
	Context json.RawMessage `json:"context,omitempty"`
}

// Format is the format of documents.
type Format string

// Formats.
const (
	// FormatJSON is one object per line.
	FormatJSON Format = "json"
	// FormatYAML is a stream of documents, each begun by "---".
	FormatYAML Format = "yaml"
)

// Documents writes one document per event.
type Documents struct {
	w      io.Writer
	format Format
	err    error
}

// NewDocuments returns a printer to w.
func NewDocuments(w io.Writer, format Format) *Documents { return &Documents{w: w, format: format} }

// Observe writes an event.
func (d *Documents) Observe(e host.Event) {
	if d.err != nil {
		return
	}
	document := Document{Event: string(e.Kind), Time: e.Time.UTC(), Message: e.Message, Outcome: string(e.Outcome), Gates: e.Gates}
	var text []byte
	if e.Context != nil {
		// A reader gets every field of a context.
		document.Context, d.err = protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(e.Context)
	}
	if d.err == nil {
		text, d.err = json.Marshal(document)
	}
	if d.err == nil {
		d.err = writeJSON(d.w, text, d.format)
	}
}

// Err returns the first error. Nothing is written after it.
func (d *Documents) Err() error { return d.err }

// WriteMessage writes a response of the contract, as ProtoJSON or YAML.
func WriteMessage(w io.Writer, m proto.Message, format Format) error {
	text, err := protojson.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %T: %w", m, err)
	}
	return writeJSON(w, text, format)
}

// writeJSON writes JSON in a format.
func writeJSON(w io.Writer, text []byte, format Format) error {
	var out bytes.Buffer
	var err error
	if format == FormatYAML {
		text, err = yaml.JSONToYAML(text)
		out.WriteString("---\n")
		out.Write(text)
	} else {
		// protojson varies its white space on purpose.
		err = json.Compact(&out, text)
		out.WriteString("\n")
	}
	if err == nil {
		_, err = w.Write(out.Bytes())
	}
	if err != nil {
		return fmt.Errorf("write %s output: %w", format, err)
	}
	return nil
}
