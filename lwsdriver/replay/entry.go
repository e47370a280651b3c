// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// version is the version of the schema of entries.
const version = 1

// Entry is one decision.
type Entry struct {
	// Observation is what the decision was made from.
	Observation plan.Observation
	// Intent is what a caller requested. Nil means the driver continued by itself.
	Intent plan.Intent
	// Decision is the recorded decision.
	Decision Decision
	// Refusal is why the intent was refused. Empty means that it was not.
	Refusal string
}

// Decision is the recorded form of a [plan.Decision].
type Decision struct {
	// Action is the kind of the write, and Write its content. Empty means no write.
	Action string          `json:"action,omitempty"`
	Write  json.RawMessage `json:"write,omitempty"`
	State  string          `json:"state,omitempty"`
	Reason string          `json:"reason,omitempty"`
	// Message is not compared.
	Message  string        `json:"message,omitempty"`
	Recheck  time.Duration `json:"recheck,omitempty"`
	Deadline time.Time     `json:"deadline,omitzero"`
	Progress plan.Progress `json:"progress"`
}

// line is the recorded form of an Entry.
type line struct {
	Version     int              `json:"version"`
	Observation plan.Observation `json:"observation"`
	Intent      *intent          `json:"intent,omitempty"`
	Decision    Decision         `json:"decision,omitzero"`
	Refusal     string           `json:"refusal,omitempty"`
}

// intent is the recorded form of a [plan.Intent], with its kind.
type intent struct {
	Kind  string          `json:"kind"`
	Value json.RawMessage `json:"value"`
}

// begin is the recorded form of a [plan.Begin], with its policy as protobuf JSON.
type begin struct {
	ReleaseID, Owner string
	User             string `json:",omitempty"`
	Policy           json.RawMessage
	Revision         string `json:",omitempty"`
}

// newEntry returns the entry of a decision.
func newEntry(o plan.Observation, i plan.Intent, d plan.Decision, refusal error) (Entry, error) {
	e := Entry{Observation: o, Intent: i}
	if refusal != nil {
		e.Refusal = refusal.Error()
		return e, nil //nolint:nilerr // A refusal is an outcome.
	}
	e.Decision = Decision{
		State: d.State.String(), Reason: d.Reason, Message: d.Message,
		Recheck: d.Recheck, Deadline: d.Deadline, Progress: d.Progress,
	}
	if d.Action == nil {
		return e, nil
	}
	raw, err := json.Marshal(d.Action)
	if err != nil {
		return e, fmt.Errorf("encode %T: %w", d.Action, err)
	}
	e.Decision.Action, e.Decision.Write = kindOf(d.Action), raw
	return e, nil
}

func kindOf(v any) string { return reflect.TypeOf(v).Name() }

// MarshalJSON returns the line of the entry.
func (e Entry) MarshalJSON() ([]byte, error) {
	l := line{Version: version, Observation: e.Observation, Decision: e.Decision, Refusal: e.Refusal}
	if e.Intent != nil {
		value, err := encodeIntent(e.Intent)
		if err != nil {
			return nil, err
		}
		l.Intent = &intent{kindOf(e.Intent), value}
	}
	raw, err := json.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("encode decision: %w", err)
	}
	return raw, nil
}

// UnmarshalJSON reads a line.
func (e *Entry) UnmarshalJSON(raw []byte) error {
	var l line
	if err := json.Unmarshal(raw, &l); err != nil {
		return fmt.Errorf("read decision: %w", err)
	}
	if l.Version != version {
		return fmt.Errorf("read decision: version %d, this program reads %d: use the version of lockstep that wrote it", l.Version, version)
	}
	*e = Entry{Observation: l.Observation, Decision: l.Decision, Refusal: l.Refusal}
	if l.Intent == nil {
		return nil
	}
	var err error
	e.Intent, err = decodeIntent(*l.Intent)
	return err
}

func encodeIntent(i plan.Intent) (json.RawMessage, error) {
	value := any(i)
	// A policy is protobuf, of which encoding/json does not keep everything.
	if b, ok := i.(plan.Begin); ok {
		policy, err := protojson.Marshal(b.Policy)
		if err != nil {
			return nil, fmt.Errorf("encode policy: %w", err)
		}
		value = begin{b.ReleaseID, b.Owner, b.User, policy, b.Revision}
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", i, err)
	}
	return raw, nil
}

// intents are the kinds of intents, except for Begin.
var intents = []plan.Intent{plan.Adopt{}, plan.Disown{}, plan.SetTarget{}, plan.Promote{}, plan.RollBack{}, plan.Route{}, plan.Undo{}}

func decodeIntent(i intent) (plan.Intent, error) {
	if i.Kind == "Begin" {
		return decodeBegin(i.Value)
	}
	at := slices.IndexFunc(intents, func(known plan.Intent) bool { return kindOf(known) == i.Kind })
	if at < 0 {
		return nil, fmt.Errorf("read intent: kind %q is not known to this version", i.Kind)
	}
	into := reflect.New(reflect.TypeOf(intents[at]))
	if err := json.Unmarshal(i.Value, into.Interface()); err != nil {
		return nil, fmt.Errorf("read intent %s: %w", i.Kind, err)
	}
	value, _ := into.Elem().Interface().(plan.Intent) // it has the type of one
	return value, nil
}

func decodeBegin(raw json.RawMessage) (plan.Intent, error) {
	var b begin
	policy := &pb.ReleasePolicy{}
	err := json.Unmarshal(raw, &b)
	if err == nil {
		err = protojson.Unmarshal(b.Policy, policy)
	}
	if err != nil {
		return nil, fmt.Errorf("read intent Begin: %w", err)
	}
	return plan.Begin{ReleaseID: b.ReleaseID, Owner: b.Owner, User: b.User, Policy: policy, Revision: b.Revision}, nil
}
