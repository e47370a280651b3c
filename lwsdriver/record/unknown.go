// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Unknown holds the fields of a JSON object that this driver does not know, by name, as they were read. A newer driver
// wrote them. They are kept and written back with every write of the object, and never acted on.
//
// A known field is in it if its value contains what this driver does not know: acting on half a value could do what no
// host requested. It is written back unless the driver sets the field itself.
type Unknown map[string]json.RawMessage

// ReadObject reads a JSON object into a struct and returns what the struct does not have. Its fields are read strictly,
// unless their type is read by a ReadObject of its own.
func ReadObject(raw []byte, into any) (Unknown, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	v := reflect.ValueOf(into).Elem()
	for name, i := range fieldsOf(v.Type()) {
		value, ok := all[name]
		if !ok {
			continue
		}
		if strictJSON(string(value), v.Field(i).Addr().Interface()) == nil {
			delete(all, name)
		} else {
			v.Field(i).SetZero() // it may have been read in part
		}
	}
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // every field is known
	}
	return all, nil
}

// WriteObject encodes a struct together with what ReadObject returned. The names are sorted, so that equal objects are
// equal bytes. plain must not have a MarshalJSON of its own.
func WriteObject(plain any, unknown Unknown) ([]byte, error) {
	raw, err := json.Marshal(plain)
	if err != nil || len(unknown) == 0 {
		return raw, err //nolint:wrapcheck // the caller says what is encoded
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err //nolint:wrapcheck // the caller says what is encoded
	}
	v := reflect.ValueOf(plain)
	known := fieldsOf(v.Type())
	for name, value := range unknown {
		if i, ok := known[name]; !ok || v.Field(i).IsZero() {
			all[name] = value
		}
	}
	return json.Marshal(all) //nolint:wrapcheck // the caller says what is encoded
}

// HalfRead returns the known fields of a struct that are in u, sorted.
func (u Unknown) HalfRead(of any) []string {
	known := fieldsOf(reflect.TypeOf(of))
	return slices.DeleteFunc(slices.Sorted(maps.Keys(u)), func(name string) bool { _, ok := known[name]; return !ok })
}

// check refuses a known field whose value has the wrong type: no driver wrote it.
func (u Unknown) check(of any) error {
	t := reflect.TypeOf(of)
	known := fieldsOf(t)
	for _, name := range u.HalfRead(of) {
		if err := json.Unmarshal(u[name], reflect.New(t.Field(known[name]).Type).Interface()); err != nil {
			return fmt.Errorf("read JSON: %s: %w", name, err)
		}
	}
	return nil
}

// with returns a copy that has one more field.
func (u Unknown) with(name string, value json.RawMessage) Unknown {
	next := maps.Clone(u)
	if next == nil {
		next = Unknown{}
	}
	next[name] = value
	return next
}

// fieldsOf returns the index of each field of a struct by its name in JSON.
func fieldsOf(t reflect.Type) map[string]int {
	out := map[string]int{}
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			out[name] = i
		}
	}
	return out
}

// isNull reports whether a JSON value is null, which leaves an object as it is.
func isNull(raw []byte) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

type (
	plainRecord  Record
	plainRelease Release
	plainTarget  Target
	plainTraffic Traffic
)

// MarshalJSON writes back what is unknown.
func (r Record) MarshalJSON() ([]byte, error) { return WriteObject(plainRecord(r), r.Unknown) }

// MarshalJSON writes back what is unknown.
func (r Release) MarshalJSON() ([]byte, error) { return WriteObject(plainRelease(r), r.Unknown) }

// MarshalJSON writes back what is unknown.
func (t Target) MarshalJSON() ([]byte, error) { return WriteObject(plainTarget(t), t.Unknown) }

// MarshalJSON writes back what is unknown.
func (t Traffic) MarshalJSON() ([]byte, error) { return WriteObject(plainTraffic(t), t.Unknown) }

// UnmarshalJSON keeps what is unknown.
func (r *Record) UnmarshalJSON(raw []byte) (err error) {
	if !isNull(raw) {
		*r = Record{}
		r.Unknown, err = ReadObject(raw, r)
	}
	return err
}

// UnmarshalJSON keeps what is unknown.
func (r *Release) UnmarshalJSON(raw []byte) (err error) {
	if !isNull(raw) {
		*r = Release{}
		r.Unknown, err = ReadObject(raw, r)
	}
	return err
}

// UnmarshalJSON keeps what is unknown.
func (t *Target) UnmarshalJSON(raw []byte) (err error) {
	if !isNull(raw) {
		*t = Target{}
		t.Unknown, err = ReadObject(raw, t)
	}
	return err
}

// UnmarshalJSON keeps what is unknown.
func (t *Traffic) UnmarshalJSON(raw []byte) (err error) {
	if !isNull(raw) {
		*t = Traffic{}
		t.Unknown, err = ReadObject(raw, t)
	}
	return err
}
