// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// noteVersion is the version of the annotation's schema.
const noteVersion = 1

// note is the annotation: the metadata of a revision. Its Revision and Number repeat those of the object.
type note struct {
	Version int
	plan.Entry

	// Sum is the digest of all other fields.
	Sum string
}

// data is the stored template, in the form in which LWS stores it.
type data struct {
	Spec record.Template `json:"spec"`
}

// Name returns the name of the snapshot of a revision. A workload that is recreated has another UID, and so never
// conflicts with the snapshots of the old one.
func Name(workload string, uid types.UID, revision string) string {
	short := strings.ReplaceAll(string(uid), "-", "")
	return fmt.Sprintf("%s-lockstep-%s-%s", workload, short[:min(len(short), 8)], revision)
}

// Kept reports whether a ControllerRevision is in the history of a workload.
func Kept(cr *appsv1.ControllerRevision, w *lws.LeaderWorkerSet) bool {
	return cr.Labels[record.RoleLabel] == record.RoleSnapshot && cr.Labels[record.StableLabel] == w.Name && metav1.IsControlledBy(cr, w)
}

// Object returns the ControllerRevision for a new entry. A workload without a kind is a LeaderWorkerSet, as clients return it.
func Object(w *lws.LeaderWorkerSet, e plan.Entry, t record.Template) (*appsv1.ControllerRevision, error) {
	raw, err := json.Marshal(data{t})
	if err != nil {
		return nil, fmt.Errorf("encode template: %w", err)
	}
	// The API server encodes data in this order whenever an object is patched, and refuses any change of it: an owner could not be orphaned.
	if raw, err = canonicalJSON(raw); err != nil {
		return nil, err
	}
	e.Template = hexOf(raw)
	text, err := noteOf(e)
	if err != nil {
		return nil, err
	}
	owner := metav1.NewControllerRef(w, cmp.Or(w.GroupVersionKind(), lws.GroupVersion.WithKind("LeaderWorkerSet")))
	owner.BlockOwnerDeletion = nil // it must not block the workload's deletion
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Namespace, Name: Name(w.Name, w.UID, e.Revision),
			Labels: map[string]string{
				record.RoleLabel: record.RoleSnapshot, record.StableLabel: w.Name, record.RevisionLabel: e.Revision,
			},
			Annotations:     map[string]string{record.SnapshotAnnotation: text},
			OwnerReferences: []metav1.OwnerReference{*owner},
		},
		Data:     runtime.RawExtension{Raw: raw},
		Revision: e.Number,
	}, nil
}

// Patch returns the merge patch that writes an entry to a snapshot, on condition that the snapshot has not changed.
func Patch(e plan.Entry, seen metav1.Object) ([]byte, error) {
	text, err := noteOf(e)
	if err != nil {
		return nil, err
	}
	meta := map[string]any{
		"uid": seen.GetUID(), "annotations": map[string]string{record.SnapshotAnnotation: text},
	}
	if version := seen.GetResourceVersion(); version != "" {
		meta["resourceVersion"] = version
	}
	raw, err := json.Marshal(map[string]any{"metadata": meta, "revision": e.Number})
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return raw, nil
}

// noteOf returns the note of an entry whose template digest is known.
func noteOf(e plan.Entry) (string, error) {
	e.At, e.Ended, e.Problem = e.At.UTC(), e.Ended.UTC(), ""
	n := note{Version: noteVersion, Entry: e}
	n.Sum = n.sum()
	raw, err := json.Marshal(n)
	if err != nil {
		return "", fmt.Errorf("encode history: %w", err)
	}
	return string(raw), nil
}

// sum detects edits. It is no protection against forgery.
func (n note) sum() string {
	n.Sum = ""
	raw, _ := json.Marshal(n) //nolint:errchkjson // strings and times
	return hexOf(raw)
}

// Read returns the entry of a snapshot. One that can't be trusted has a Problem, and beside it only what identifies it.
func Read(cr *appsv1.ControllerRevision) plan.Entry {
	e := plan.Entry{Revision: strings.Clone(cr.Labels[record.RevisionLabel]), Number: cr.Revision, At: cr.CreationTimestamp.Time}
	n, err := readNote(cr, e)
	if err != nil {
		e.Problem = fmt.Sprintf("ControllerRevision %s/%s can't be trusted: %v. It was edited, or a newer driver wrote it: run that driver, or "+
			"delete it, and if its revision is still in use, it is recreated", cr.Namespace, cr.Name, err)
		return e
	}
	return n.Entry
}

// readNote trusts nothing: an edited template would be restored as one that had served.
func readNote(cr *appsv1.ControllerRevision, e plan.Entry) (note, error) {
	var n note
	if err := record.StrictJSON(cr.Annotations[record.SnapshotAnnotation], &n); err != nil {
		return n, fmt.Errorf("annotation %s: %w", record.SnapshotAnnotation, err)
	}
	switch have, err := canonicalJSON(cr.Data.Raw); {
	case n.Version != noteVersion:
		return n, fmt.Errorf("annotation %s has version %d, this driver knows %d", record.SnapshotAnnotation, n.Version, noteVersion)
	case n.Sum != n.sum(), n.Revision != e.Revision, n.Number != e.Number:
		// An edit of the number would make an older revision the newest.
		return n, fmt.Errorf("its annotation %s, label or revision number was changed since the driver wrote it", record.SnapshotAnnotation)
	case err != nil:
		return n, err
	case n.Template != hexOf(have):
		return n, errors.New("its template is not the one that the driver saved")
	}
	return n, nil
}

// Template returns the template in a trusted snapshot.
func Template(cr *appsv1.ControllerRevision) (record.Template, error) {
	if problem := Read(cr).Problem; problem != "" {
		return record.Template{}, errors.New(problem)
	}
	return Decode(cr)
}

// Decode returns the template in a ControllerRevision of the driver or of LWS.
func Decode(cr *appsv1.ControllerRevision) (record.Template, error) {
	var d data
	if err := json.Unmarshal(cr.Data.Raw, &d); err != nil {
		return d.Spec, fmt.Errorf("read ControllerRevision %s/%s: %w", cr.Namespace, cr.Name, err)
	}
	return d.Spec, nil
}

// canonicalJSON returns JSON with its keys in order, whatever its formatting.
func canonicalJSON(raw []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	// float64 would round large integers.
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, fmt.Errorf("read template: %w", err)
	}
	sorted, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode template: %w", err)
	}
	return sorted, nil
}

func hexOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
