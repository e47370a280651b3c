// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
)

// unknownFields returns the fields of a message, at any depth, that this driver's version of the contract does not have. A host
// that sets one relies on it, and a policy is about safety: so it is refused, not ignored.
func unknownFields(path string, m protoreflect.Message) []drivererr.FieldViolation {
	var bad []drivererr.FieldViolation
	for raw := m.GetUnknown(); len(raw) > 0; {
		number, _, n := protowire.ConsumeField(raw)
		if n < 0 {
			break // can't happen: the message has been parsed
		}
		raw = raw[n:]
		bad = append(bad, drivererr.FieldViolation{
			Field: path, Description: fmt.Sprintf("has field number %d, which this driver does not know: leave it out, or run a newer driver", number),
		})
	}
	for field, value := range m.Range {
		bad = append(bad, unknownIn(path+"."+string(field.Name()), field, value)...)
	}
	return bad
}

func unknownIn(path string, field protoreflect.FieldDescriptor, value protoreflect.Value) []drivererr.FieldViolation {
	var bad []drivererr.FieldViolation
	switch {
	case field.IsMap():
		if field.MapValue().Message() == nil {
			return nil
		}
		for key, v := range value.Map().Range {
			bad = append(bad, unknownFields(fmt.Sprintf("%s[%v]", path, key), v.Message())...)
		}
	case field.Message() == nil:
	case field.IsList():
		for i := range value.List().Len() {
			bad = append(bad, unknownFields(fmt.Sprintf("%s[%d]", path, i), value.List().Get(i).Message())...)
		}
	default:
		bad = unknownFields(path, value.Message())
	}
	return bad
}
