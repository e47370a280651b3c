// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package output

import (
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
)

// WriteMessage writes a response of the contract, as ProtoJSON or YAML.
func WriteMessage(w io.Writer, m proto.Message, format view.Format) error {
	text, err := protojson.Marshal(m)
	return write(w, m, text, err, format)
}

// WriteDocument writes a document that is not of the contract.
func WriteDocument(w io.Writer, document any, format view.Format) error {
	text, err := json.Marshal(document)
	return write(w, document, text, err, format)
}

// write writes JSON as one line, or as YAML.
func write(w io.Writer, document any, text []byte, err error, format view.Format) error {
	if err == nil && format == view.FormatYAML {
		text, err = yaml.JSONToYAML(text)
	} else {
		text = append(text, '\n')
	}
	if err != nil {
		return fmt.Errorf("encode %T: %w", document, err)
	}
	_, err = w.Write(text)
	return err //nolint:wrapcheck // the caller's own stream
}
