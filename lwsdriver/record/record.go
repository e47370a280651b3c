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
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// recordVersion is the schema that this driver reads and writes.
const recordVersion = 1

// Record is all that the driver remembers: one annotation on the stable workload, written before the first effect of
// what it says. Everything else is derived from the cluster each time.
type Record struct {
	// Version is the schema's.
	Version int `json:"version"`
	// UID is the workload's that the record was written on: manifests are copied, annotations and all.
	UID types.UID `json:"uid,omitempty"`
	// Saved is the user's own rolling update configuration, given back by Disown and used by promotion.
	Saved lws.RollingUpdateConfiguration `json:"saved"`
	// Set is the rolling update configuration that the driver has set last, in the request that wrote this. Nil: the hold. What
	// differs from it in the spec was set by somebody else.
	Set *lws.RollingUpdateConfiguration `json:"set,omitempty"`
	// Workload is the name that hosts know the workload by, where it is not the object's own: the object was a release's
	// second set once, and was adopted. See WorkloadLabel.
	Workload string `json:"workload,omitempty"`
	// Predecessor is the name of the object that this one replaced. Hosts may go on to use it.
	Predecessor string `json:"predecessor,omitempty"`
	// Release is the one in flight or the last one that ended. Nil: none since the workload was adopted.
	Release *Release `json:"release,omitempty"`
}

// KnownAs is the name that hosts know the workload by whose object has this name.
func (r *Record) KnownAs(object string) string {
	if r == nil || r.Workload == "" {
		return object
	}
	return r.Workload
}

// LastSet is the rolling update configuration that the driver has set last.
func (r *Record) LastSet() lws.RollingUpdateConfiguration {
	if r.Set == nil {
		return Hold()
	}
	return *r.Set
}

// WithSet returns the record of a request that sets a rolling update configuration.
func (r Record) WithSet(set lws.RollingUpdateConfiguration) Record {
	if r.Set = &set; SameRolling(set, Hold()) {
		r.Set = nil
	}
	return r
}

// Release is one attempt to move a workload from its stable revision to its update revision.
type Release struct {
	ID    string `json:"id"`
	Owner string `json:"owner,omitempty"`
	// Policy is the ReleasePolicy as protobuf JSON.
	Policy json.RawMessage `json:"policy"`
	// StableRevision is the template revision hash that served before the release.
	StableRevision string `json:"stableRevision"`
	// UpdateRevision is the template revision hash that the release brings. Empty until LWS has recorded it.
	UpdateRevision string `json:"updateRevision,omitempty"`
	Phase          Phase  `json:"phase"`
	// StartedAt is when the release was initialised.
	StartedAt time.Time `json:"startedAt"`
	// PhaseAt is when Phase or UpdateRevision changed last.
	PhaseAt time.Time `json:"phaseAt"`
	// Target is set only while no workload exists that could carry it; see TargetAnnotation.
	Target *Target `json:"target,omitempty"`
	// StableTemplate is the stable revision's template, saved before the last group that runs it is replaced in place.
	StableTemplate *Template `json:"stableTemplate,omitempty"`
	// RestartsExhausted is a revision, released before, whose groups keep it however often they are restarted. In place only.
	RestartsExhausted string `json:"restartsExhausted,omitempty"`
	// Unfenced: the split of requests in place has ended, and they follow the groups. In place only.
	Unfenced bool `json:"unfenced,omitempty"`
	// Traffic is where the host wants the requests to go. Nil: to the stable leaders.
	Traffic *Traffic `json:"traffic,omitempty"`
	// Successor names the second set while it is being adopted, and Groups is how many groups the workload had before.
	Successor string `json:"successor,omitempty"`
	Groups    int    `json:"groups,omitempty"`
}

// Template is the part of a LeaderWorkerSet's spec of which LWS makes revisions.
type Template struct {
	LeaderWorkerTemplate lws.LeaderWorkerTemplate `json:"leaderWorkerTemplate"`
	NetworkConfig        *lws.NetworkConfig       `json:"networkConfig,omitempty"`
}

// TemplateOf returns the template in the spec of a workload.
func TemplateOf(w *lws.LeaderWorkerSet) Template {
	return Template{LeaderWorkerTemplate: w.Spec.LeaderWorkerTemplate, NetworkConfig: w.Spec.NetworkConfig}
}

// Phase is the durable intent of a release. Whether it is reached is derived from the cluster.
type Phase string

// The phases. A release starts in Progressing (or Nothing) and never returns to it, but for a new template.
const (
	// Progressing follows the target.
	Progressing Phase = "Progressing"
	// Promoting: the stable workload is released to roll natively to the update revision.
	Promoting Phase = "Promoting"
	// Standby: the second set has the requests and is to be adopted; the stable groups stand by for the policy's
	// ScaleDownDelay, so that one write of the routes returns the requests to them.
	Standby Phase = "Standby"
	// HandingOver: the second set becomes the workload, and the object that the record is on goes. There is no way back.
	HandingOver Phase = "HandingOver"
	// Promoted: every stable group is at the update revision and the hold is back; what the release added goes.
	Promoted Phase = "Promoted"
	// CleaningUp: groups of the user's own workload are at another revision than the stable one, which is being restored: LWS
	// rolls them natively if the stable template is in the spec; if not, they are restarted under the hold.
	RollingBack Phase = "RollingBack"
	// CleaningUp: every stable group is at the stable revision; what the release added is being deleted.
	CleaningUp Phase = "CleaningUp"
	// Nothing: the stable groups already ran the workload's template when the release was initialised.
	Nothing Phase = "Nothing"
)

// Unfinished says whether the release still changes the workload, whatever is left of what it added.
func (p Phase) Unfinished() bool {
	return p == Progressing || p == Promoting || p == Standby || p == HandingOver || p == RollingBack
}

// Target is the batch that a host asked for last.
type Target struct {
	// Groups is the Quantity, as given.
	Groups string `json:"groups"`
	// Batch is the index into the policy's batches. Nil: an absolute target.
	Batch *int `json:"batch,omitempty"`
	// At is when it was asked for, or when the driver last had to ask the cluster for more groups to keep it; the
	// progress deadline counts from it.
	At time.Time `json:"at"`
}

// Planned is the number of groups that the target means at the given replicas. No target means none.
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

// Renewed is the same target with the progress deadline counting from now: groups that a scale-up or a lost canary adds
// late in a batch get as long as the batch's first ones. No target stays none.
func (t *Target) Renewed(now time.Time) *Target {
	if t == nil {
		return nil
	}
	next := *t
	next.At = now
	return &next
}

// PolicyMessage is the recorded policy as it came.
func (r *Release) PolicyMessage() (*pb.ReleasePolicy, error) {
	p := &pb.ReleasePolicy{}
	if err := protojson.Unmarshal(r.Policy, p); err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return p, nil
}

// EncodeTraffic is the form in which a traffic policy is noted on what a release adds.
func EncodeTraffic(p *pb.TrafficPolicy) (string, error) {
	raw, err := encode(p)
	return string(raw), err
}

// EncodePolicy is the form in which a policy is recorded.
func EncodePolicy(p *pb.ReleasePolicy) (json.RawMessage, error) { return encode(p) }

func encode(m proto.Message) (json.RawMessage, error) {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode policy: %w", err)
	}
	// protojson varies its white space on purpose; the record must not.
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("encode policy: %w", err)
	}
	return b.Bytes(), nil
}

// Encode returns the annotation's value.
func (r *Record) Encode() (string, error) {
	r.Version = recordVersion
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode release record: %w", err)
	}
	return string(raw), nil
}

// DecodeRecord reads the annotation. It trusts nothing: an unknown field, another version or a value that no driver
// would have written is an error, since acting on a record that somebody edited could move groups nobody asked to move.
func DecodeRecord(value string) (*Record, error) {
	// The version first: a newer schema has fields that this one would only call unknown.
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal([]byte(value), &head); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	if head.Version != recordVersion {
		return nil, fmt.Errorf("schema version is %d, this driver knows %d: run the driver that wrote it", head.Version, recordVersion)
	}
	r := &Record{}
	if err := strictJSON(value, r); err != nil {
		return nil, err
	}
	if err := checkRolling(r.Saved); err != nil {
		return nil, fmt.Errorf("saved: %w", err)
	}
	if err := checkRolling(r.LastSet()); err != nil {
		return nil, fmt.Errorf("set: %w", err)
	}
	if r.Release != nil {
		if err := r.Release.validate(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Encode returns the annotation's value.
func (t Target) Encode() (string, error) {
	raw, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("encode target: %w", err)
	}
	return string(raw), nil
}

// DecodeTarget reads the annotation as strictly as DecodeRecord. An empty value is no target.
func DecodeTarget(value string) (*Target, error) {
	if value == "" {
		return nil, nil //nolint:nilnil // no annotation is a state of its own, not an error
	}
	t := &Target{}
	if err := strictJSON(value, t); err != nil {
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

// ValidID says whether id can name a release. It is also a valid label value.
func ValidID(id string) bool { return releaseID.MatchString(id) }

func (r *Release) validate() error {
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
	p, err := r.PolicyMessage()
	if err != nil {
		return err
	}
	if _, bad := ParsePolicy(p); len(bad) > 0 {
		return fmt.Errorf("%s %s", bad[0].Field, bad[0].Description)
	}
	if r.Target != nil {
		if err := r.Target.validate(); err != nil {
			return err
		}
	}
	return r.Traffic.validate()
}

func strictJSON(value string, into any) error {
	d := json.NewDecoder(strings.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("read JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("read JSON: something follows the value")
	}
	return nil
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
