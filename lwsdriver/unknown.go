// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
)

// unknownFields returns the messages, at any depth, with a field that this driver's version of the contract does not have. A host
// that sets one relies on it, and a policy is about safety: so it is refused, not ignored.
func unknownFields(path string, m protoreflect.Message) (bad []drivererr.FieldViolation) {
	_ = protorange.Range(m, func(v protopath.Values) error {
		last := v.Len() - 1
		if raw := v.Values[last]; v.Path[last].Kind() == protopath.UnknownAccessStep {
			number, _, _ := protowire.ConsumeTag(raw.Bytes())
			bad = append(bad, drivererr.FieldViolation{
				Field:       path + v.Path[1:last].String(),
				Description: fmt.Sprintf("has field number %d, which this driver does not know: leave it out, or run a newer driver", number),
			})
		}
		return nil
	})
	return bad
}
