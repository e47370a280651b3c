// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// decodeRecord decodes the annotation as far as this driver knows its fields, and returns the first that it does not know.
func decodeRecord(value string) (r *Record, unknown string, err error) {
	r = &Record{}
	strict := StrictJSON(value, r)
	if strict == nil {
		return r, "", nil
	}
	r = &Record{}
	// A record that is unreadable without the strict checks, too, is invalid and not only newer.
	if json.Unmarshal([]byte(value), r) != nil {
		return r, "", strict
	}
	return r, strings.TrimPrefix(strict.Error(), "read JSON: json: "), nil
}

// describeNewer returns what this driver does not know of the record, given the first field that it does not know. It
// is empty if the driver knows all.
func (r *Record) describeNewer(unknown string) string {
	switch {
	case r.Version > recordVersion:
		return fmt.Sprintf("schema version %d (this driver knows %d)", r.Version, recordVersion)
	case unknown == "" && r.Release != nil && r.Release.newerPolicy():
		// The policy is JSON within the record, whose strict reading does not look into it.
		return "unknown values in release.policy"
	}
	return unknown
}

// newerPolicy reports whether only what this driver does not know keeps it from reading the policy.
func (r *Release) newerPolicy() bool {
	_, strict := r.PolicyMessage()
	_, err := r.KnownPolicy()
	return strict != nil && err == nil
}

// checkRollBack refuses a newer driver's record that lacks what a rollback writes back, or has fields in it that this driver does not
// know.
func (r *Record) checkRollBack(value string) error {
	var parts struct {
		Saved   strictly[lws.RollingUpdateConfiguration]  `json:"saved"`
		Set     *strictly[lws.RollingUpdateConfiguration] `json:"set"`
		Release struct {
			StableTemplate *strictly[Template] `json:"stableTemplate"`
			Policy         struct {
				Traffic json.RawMessage `json:"traffic"`
			} `json:"policy"`
		} `json:"release"`
	}
	if err := json.Unmarshal([]byte(value), &parts); err != nil {
		return err //nolint:wrapcheck // strictly has
	}
	// The rollback restores these routes, so none may be of a kind that this driver does not know.
	if routes := parts.Release.Policy.Traffic; routes != nil {
		if err := protojson.Unmarshal(routes, &pb.TrafficPolicy{}); err != nil {
			return fmt.Errorf("release.policy.traffic: %w", err)
		}
	}
	switch {
	case SameRolling(r.Saved, lws.RollingUpdateConfiguration{}):
		// The zero value has maxUnavailable and maxSurge 0, which LWS refuses, so no spec had it.
		return errors.New("saved is missing")
	case r.Release != nil && r.Release.StableRevision == "" && r.Release.Phase != Nothing:
		return errors.New("release.stableRevision is missing")
	}
	return nil
}

// strictly is JSON of T without a field that T does not have.
type strictly[T any] struct{}

// UnmarshalJSON decodes nothing.
func (strictly[T]) UnmarshalJSON(raw []byte) error { return StrictJSON(string(raw), new(T)) }

// EncodeOver returns the annotation's value in place of an earlier one. If a newer driver wrote the earlier one, the fields that this
// driver does not know stay.
func (r *Record) EncodeOver(earlier string) (string, error) {
	value, err := r.Encode()
	before, unread := DecodeRecord(earlier)
	if err != nil || unread != nil || before.Newer == "" {
		return value, err
	}
	// What before lacks of earlier is what this driver does not know. The patch leaves that alone.
	known, err := before.Encode()
	if err != nil {
		return "", err
	}
	patch, err := jsonpatch.CreateMergePatch([]byte(known), []byte(value))
	if err != nil {
		return "", fmt.Errorf("compare release records: %w", err)
	}
	merged, err := jsonpatch.MergePatch([]byte(earlier), patch)
	if err != nil {
		return "", fmt.Errorf("change release record: %w", err)
	}
	return string(merged), nil
}
