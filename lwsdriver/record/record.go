// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// recordVersion is the version of the schema.
const recordVersion = 1

// Record is everything that the driver remembers: one annotation on the stable workload, written before the first effect
// of its content. Everything else is derived from the cluster.
type Record struct {
	// Version is the version of the schema.
	Version int `json:"version"`
	// UID is that of the workload that the record was written on, since manifests are copied with their annotations.
	UID types.UID `json:"uid,omitempty"`
	// Saved is the user's own rolling update configuration, which promotion uses and Disown restores.
	Saved lws.RollingUpdateConfiguration `json:"saved"`
	// Set is the rolling update configuration that the driver last set, in the request that wrote this. Nil means the hold.
	// Fields of the spec that differ were changed by another client.
	Set *lws.RollingUpdateConfiguration `json:"set,omitempty"`
	// Workload is the name that hosts know the workload by, if it differs from the object's: the object was a release's
	// second set, and the workload was handed over to it. See WorkloadLabel.
	Workload string `json:"workload,omitempty"`
	// Predecessor is the name of the object that this one replaced. Hosts may continue to use it.
	Predecessor string `json:"predecessor,omitempty"`
	// Release is the release in flight, or the last one. Nil means none since the workload was adopted.
	Release *Release `json:"release,omitempty"`
	// Newer is what this driver does not know of the record, which a newer driver wrote. The release is only rolled back then. It
	// is empty if the driver knows all.
	Newer string `json:"-"`
}

// KnownAs returns the name that hosts know the workload by, given the name of its object.
func (r *Record) KnownAs(object string) string {
	if r == nil || r.Workload == "" {
		return object
	}
	return r.Workload
}

// LastSet returns the rolling update configuration that the driver last set.
func (r *Record) LastSet() lws.RollingUpdateConfiguration {
	if r.Set == nil {
		return Hold()
	}
	return *r.Set
}

// WithSet returns the record for a request that sets a rolling update configuration.
func (r Record) WithSet(set lws.RollingUpdateConfiguration) Record {
	// The hold is the default, which the record leaves out: LWS v0.10.0 copies it to StatefulSets, so it is kept small.
	if r.Set = &set; SameRolling(set, Hold()) {
		r.Set = nil
	}
	return r
}

// Release is one attempt to move a workload from its stable revision to its update revision.
type Release struct {
	ID    string `json:"id"`
	Owner string `json:"owner,omitempty"`
	// StartedBy and EndedBy are the authenticated users who began the release, and who requested its promotion or rollback
	// last. Empty means unknown, or not yet.
	StartedBy string `json:"startedBy,omitempty"`
	EndedBy   string `json:"endedBy,omitempty"`
	// EndMessage is why that end was requested, for people.
	EndMessage string `json:"endMessage,omitempty"`
	// Policy is the ReleasePolicy as protobuf JSON.
	Policy json.RawMessage `json:"policy"`
	// StableRevision is the template revision hash from before the release.
	StableRevision string `json:"stableRevision"`
	// UpdateRevision is the template revision hash to release. Empty until LWS has recorded it.
	UpdateRevision string `json:"updateRevision,omitempty"`
	Phase          Phase  `json:"phase"`
	// StartedAt is when the release was initialised.
	StartedAt time.Time `json:"startedAt"`
	// PhaseAt is when Phase or UpdateRevision last changed.
	PhaseAt time.Time `json:"phaseAt"`
	// Target is set only while no added workload exists to hold it; see TargetAnnotation.
	Target *Target `json:"target,omitempty"`
	// StableTemplate is the template of the stable revision, saved before its last group is replaced in place.
	StableTemplate *Template `json:"stableTemplate,omitempty"`
	// RestartsExhausted is an earlier update revision whose groups restarts did not change. In place only.
	RestartsExhausted string `json:"restartsExhausted,omitempty"`
	// SplitEnded: the split of requests in place has ended, and requests follow the groups. In place only.
	SplitEnded bool `json:"splitEnded,omitempty"`
	// Replicas is how many groups the workload had when the release began. It is lowered when a person scales the workload
	// down.
	Replicas int `json:"replicas,omitempty"`
	// Traffic is the routing that the host requested. Nil means all requests to the stable leaders.
	Traffic *Traffic `json:"traffic,omitempty"`
	// Force is true if the rollback was requested with force. GivenUp are the indices of the broken stable groups that do not hold it
	// up, sorted.
	Force   bool  `json:"force,omitempty"`
	GivenUp []int `json:"givenUp,omitempty"`
	// EntryRole is the role of a DisaggregatedSet whose leaders get the requests, since the Service selects them. Empty means the first one.
	EntryRole string `json:"entryRole,omitempty"`
	// Successor names the second set during a handover, and Groups is how many groups the workload had before.
	Successor string `json:"successor,omitempty"`
	Groups    int    `json:"groups,omitempty"`
	// SlicesWait is true if slices of a DisaggregatedSet wait for the bounds of the promoted revision. LWS tries again once it is removed.
	SlicesWait bool `json:"slicesWait,omitempty"`
	// Waiting is what the release has waited for, once that has lasted for a part of its deadline. Zero means that nothing has lasted so long.
	Waiting Waiting `json:"waiting,omitzero"`
}

// Waiting is what a release waits for, so that its deadline survives the driver.
type Waiting struct {
	// For identifies what was asked for. An entry for anything else counts as none.
	For string `json:"for"`
	// Since is when the wait began.
	Since time.Time `json:"since"`
	// Overwritten says which other client overwrote what meanwhile. Empty means none that is known.
	Overwritten string `json:"overwritten,omitempty"`
}

// Template is the part of a workload's spec that its revisions are made of, as in the spec.
type Template struct {
	LeaderWorkerTemplate lws.LeaderWorkerTemplate `json:"leaderWorkerTemplate"`
	NetworkConfig        *lws.NetworkConfig       `json:"networkConfig,omitempty"`
	// Roles are those of a DisaggregatedSet, in the order of its spec. It has no other field.
	Roles []Role `json:"roles,omitempty"`
}

// Role is the template of a role, which has a LeaderWorkerTemplate only.
type Role struct {
	Name string   `json:"name"`
	Spec Template `json:"spec"`
}

// MarshalJSON leaves out the LeaderWorkerTemplate of a template with roles, which has none.
func (t Template) MarshalJSON() ([]byte, error) {
	var fields any = map[string]any{"roles": t.Roles}
	if len(t.Roles) == 0 {
		// plain has no methods, so its encoding does not call this one again.
		type plain Template
		fields = plain(t)
	}
	return json.Marshal(fields) //nolint:wrapcheck // as without this method
}

// TemplateOf returns the template in the spec of a LeaderWorkerSet.
func TemplateOf(w *lws.LeaderWorkerSet) Template {
	return Template{LeaderWorkerTemplate: w.Spec.LeaderWorkerTemplate, NetworkConfig: w.Spec.NetworkConfig}
}

// Phase is the persisted intent of a release. Whether it is complete is derived from the cluster.
type Phase string

// The phases. A release starts in Progressing or Nothing and returns to Progressing only for a new template.
const (
	// Progressing follows the target.
	Progressing Phase = "Progressing"
	// Promoting: the hold is released, and LWS rolls the stable workload to the update revision.
	Promoting Phase = "Promoting"
	// Standby: the second set receives all requests before a handover; the stable groups stand by for the policy's
	// ScaleDownDelay, so that one write of the routes returns the requests to them.
	Standby Phase = "Standby"
	// HandingOver: the second set becomes the workload, and the record's object is deleted. A rollback is no longer
	// possible. A DisaggregatedSet only loses its stable groups, which a rollback has recreated.
	HandingOver Phase = "HandingOver"
	// Promoted: every stable group is at the update revision and held; what the release added is being deleted.
	Promoted Phase = "Promoted"
	// RollingBack: groups of the user's own workload are off the stable revision, which is being restored: by LWS if the
	// spec has the stable template, otherwise by restarts under the hold. Those of a DisaggregatedSet were removed.
	RollingBack Phase = "RollingBack"
	// CleaningUp: every stable group is at the stable revision; what the release added is being deleted.
	CleaningUp Phase = "CleaningUp"
	// Nothing: the stable groups already ran the workload's template when the release began.
	Nothing Phase = "Nothing"
)

// Intent returns the end that was requested of a release in this phase.
func (p Phase) Intent() pb.FinalizeIntent {
	switch p {
	case Promoting, Standby, HandingOver, Promoted:
		return pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	case RollingBack, CleaningUp:
		return pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
	case Progressing, Nothing:
	}
	return pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED
}

// Unfinished reports whether a release in this phase still changes the user's workload.
func (p Phase) Unfinished() bool {
	return p == Progressing || p == Promoting || p == Standby || p == HandingOver || p == RollingBack
}

// Target is the batch that a host requested last.
type Target struct {
	// Groups is the Quantity, as given.
	Groups string `json:"groups"`
	// Batch is the index into the policy's batches. Nil means an absolute target.
	Batch *int `json:"batch,omitempty"`
	// At is when it was requested, or when the driver last had to add groups to keep it; the progress deadline counts
	// from it.
	At time.Time `json:"at"`
}

// Planned returns the number of groups of the target at the given replicas; 0 without a target.
func (t *Target) Planned(replicas int) (int, error) {
	if t == nil {
		return 0, nil
	}
	q, err := ParseQuantity(t.Groups)
	if err != nil {
		return 0, fmt.Errorf("read target: %w", err)
	}
	return q.Up(replicas), nil
}

// Renewed returns the target with the progress deadline counting from now: groups that are added late, by a scale-up or
// for a lost canary, have as long as the batch's first ones. Nil stays nil.
func (t *Target) Renewed(now time.Time) *Target {
	if t == nil {
		return nil
	}
	next := *t
	next.At = now
	return &next
}

// PolicyMessage returns the recorded policy as the host sent it.
func (r *Release) PolicyMessage() (*pb.ReleasePolicy, error) {
	return r.policy(protojson.UnmarshalOptions{})
}

// KnownPolicy returns the recorded policy without what this driver does not know of it.
func (r *Release) KnownPolicy() (*pb.ReleasePolicy, error) {
	return r.policy(protojson.UnmarshalOptions{DiscardUnknown: true})
}

func (r *Release) policy(options protojson.UnmarshalOptions) (*pb.ReleasePolicy, error) {
	p := &pb.ReleasePolicy{}
	if err := options.Unmarshal(r.Policy, p); err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return p, nil
}

// EncodeTraffic returns the value of TrafficAnnotation.
func EncodeTraffic(p *pb.TrafficPolicy) (string, error) {
	raw, err := encodeMessage(p)
	return string(raw), err
}

// EncodePolicy returns the recorded form of a policy.
func EncodePolicy(p *pb.ReleasePolicy) (json.RawMessage, error) { return encodeMessage(p) }

func encodeMessage(m proto.Message) (json.RawMessage, error) {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode policy: %w", err)
	}
	// protojson randomizes white space; the record must be stable.
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("encode policy: %w", err)
	}
	return b.Bytes(), nil
}

// Encode returns the annotation's value. A record of a newer schema stays one.
func (r *Record) Encode() (string, error) {
	r.Version = max(r.Version, recordVersion)
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // the limits count bytes, and "<" would become six
	if err := e.Encode(r); err != nil {
		return "", fmt.Errorf("encode release record: %w", err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// DecodeRecord reads the annotation. A value that no driver writes is an error, since acting on an edited record could move
// groups without a request.
//
// If a newer driver wrote the record, [Record.Newer] describes what this driver does not know. It is an error if this driver could
// not roll the release back.
func DecodeRecord(value string) (*Record, error) {
	r, unknown, err := decodeRecord(value)
	newer := r.describeNewer(unknown)
	switch {
	case err != nil:
	case r.Version < recordVersion:
		err = fmt.Errorf("schema version is %d, want %d or higher", r.Version, recordVersion)
	default:
		err = r.check()
	}
	// A rollback is the only thing that is safe with an intent that is not understood in full.
	if err == nil && newer != "" {
		err = r.checkRollBack(value)
	}
	switch {
	case err == nil:
		r.Newer = newer
		return r, nil
	case newer != "":
		return nil, fmt.Errorf("a newer driver wrote it, with %s, and this one can't even roll the release back: %w; run that driver", newer, err)
	}
	return nil, err
}

// check refuses a record that no driver writes.
func (r *Record) check() error {
	if err := checkRolling(r.Saved); err != nil {
		return fmt.Errorf("saved: %w", err)
	}
	if err := checkRolling(r.LastSet()); err != nil {
		return fmt.Errorf("set: %w", err)
	}
	if r.Release == nil {
		return nil
	}
	return r.Release.validate()
}

// Encode returns the annotation's value.
func (t Target) Encode() (string, error) {
	raw, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("encode target: %w", err)
	}
	return string(raw), nil
}

// DecodeTarget reads the annotation strictly. An empty value is no target.
func DecodeTarget(value string) (*Target, error) {
	if value == "" {
		return nil, nil //nolint:nilnil // no annotation is a state of its own, not an error
	}
	t := &Target{}
	if err := StrictJSON(value, t); err != nil {
		return nil, err
	}
	if err := t.validate(); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Target) validate() error {
	if _, err := ParseQuantity(t.Groups); err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	if t.Batch != nil && *t.Batch < 0 {
		return fmt.Errorf("batch: %d is negative", *t.Batch)
	}
	return nil
}

var releaseID = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?$`)

// ValidID reports whether id can name a release. It is then also a valid label value.
func ValidID(id string) bool { return releaseID.MatchString(id) }

// validate checks the release as far as this driver knows its fields.
func (r *Release) validate() error {
	if err := r.validatePhase(); err != nil {
		return err
	}
	p, err := r.KnownPolicy()
	if err != nil {
		return err
	}
	if _, bad := ParsePolicy(p); len(bad) > 0 {
		return fmt.Errorf("%s %s", bad[0].Field, bad[0].Description)
	}
	if err := r.validateSizes(); err != nil {
		return err
	}
	if r.Target != nil {
		if err := r.Target.validate(); err != nil {
			return err
		}
	}
	return r.Traffic.validate()
}

// validateSizes checks what no request has limited.
func (r *Release) validateSizes() error {
	switch {
	case len(r.Owner) > MaxOwner:
		return fmt.Errorf("the owner has %d bytes, more than %d", len(r.Owner), MaxOwner)
	case len(r.EndMessage) > MaxEndMessage:
		return fmt.Errorf("the message of the end has %d bytes, more than %d", len(r.EndMessage), MaxEndMessage)
	case r.Replicas < 0 || r.Replicas > maxCount || r.Groups > maxCount:
		return fmt.Errorf("%d replicas and %d groups must be 0 to %d", r.Replicas, r.Groups, maxCount)
	case len(r.Waiting.For) > MaxWaiting || len(r.Waiting.Overwritten) > MaxWaiting:
		return fmt.Errorf("the texts of the wait have %d and %d bytes, more than %d", len(r.Waiting.For), len(r.Waiting.Overwritten), MaxWaiting)
	case len(r.GivenUp) > MaxGivenUp:
		return fmt.Errorf("%d groups are given up, more than %d", len(r.GivenUp), MaxGivenUp)
	}
	// The driver writes them in order, so this value was edited.
	for i, g := range r.GivenUp {
		if g < 0 || i > 0 && g <= r.GivenUp[i-1] {
			return fmt.Errorf("the groups that are given up are not in order: %v", r.GivenUp)
		}
	}
	return nil
}

func (r *Release) validatePhase() error {
	if !ValidID(r.ID) {
		return fmt.Errorf("release id %q is invalid", r.ID)
	}
	switch r.Phase {
	case Progressing, Promoting, Standby, Promoted, RollingBack, CleaningUp, Nothing:
	case HandingOver:
		if r.Successor == "" || r.Groups < 0 {
			return fmt.Errorf("phase %q with successor %q and %d groups", r.Phase, r.Successor, r.Groups)
		}
	default:
		return fmt.Errorf("phase %q is unknown", r.Phase)
	}
	return nil
}

// StrictJSON decodes one value that has no field which its type does not have.
func StrictJSON(value string, into any) error {
	d := json.NewDecoder(strings.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("read JSON: %w", err)
	}
	// Decode stops after the first value, and the rest would be dropped.
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("read JSON: data after the value")
	}
	return nil
}

func hasAnyPrefix(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}
