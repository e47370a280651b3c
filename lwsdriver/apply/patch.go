// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// patch is a JSON patch on condition that its base has not changed: the spec (by generation, which a deletion increments too)
// and the driver's annotation. A resourceVersion would be too strict: LWS updates the status of a workload all the time, and
// each update would fail the patch.
type patch struct {
	base    *lws.LeaderWorkerSet
	manager string
	tests   []operation
	changes []operation
}

// operation is an operation of RFC 6902.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// newPatch returns a patch of base without changes. Its condition is that the annotation has the same value as in base, or is
// missing as in base.
func newPatch(base *lws.LeaderWorkerSet, annotation string) *patch {
	p := &patch{base: base, manager: record.FieldManager}
	p.test(base.UID, "metadata", "uid")
	p.test(base.Generation, "metadata", "generation")
	value, ok := base.Annotations[annotation]
	switch {
	case ok:
		p.test(value, "metadata", "annotations", annotation)
	case len(base.Annotations) > 0:
		// The API server takes a missing member for null.
		p.test(nil, "metadata", "annotations", annotation)
	default:
		// Without annotations there is no map to test or to add to.
		p.test(base.ResourceVersion, "metadata", "resourceVersion")
	}
	return p
}

func (p *patch) test(value any, path ...string) {
	p.tests = append(p.tests, operation{"test", pointer(path), value})
}

// add sets a member of an object, whether it exists or not.
func (p *patch) add(value any, path ...string) {
	p.changes = append(p.changes, operation{"add", pointer(path), value})
}

// remove removes a member of an object, which must exist.
func (p *patch) remove(path ...string) {
	p.changes = append(p.changes, operation{"remove", pointer(path), nil})
}

// annotate sets an annotation, or removes it if the value is empty.
func (p *patch) annotate(key, value string) {
	have, ok := p.base.Annotations[key]
	if value == "" {
		if ok {
			p.remove("metadata", "annotations", key)
		}
		return
	}
	switch {
	case have == value:
		return
	case len(p.base.Annotations) == 0:
		// Without the map there is no member to add. A second annotation would replace this one; no patch has two.
		p.add(map[string]string{key: value}, "metadata", "annotations")
	default:
		p.add(value, "metadata", "annotations", key)
	}
}

// removeLabel removes a label if it exists.
func (p *patch) removeLabel(key string) {
	if value, ok := p.base.Labels[key]; ok {
		// Removing a label that is gone would fail the whole patch as invalid, and not as a lost race.
		p.test(value, "metadata", "labels", key)
		p.remove("metadata", "labels", key)
	}
}

// removeNotes removes the admission policy's notes of what the user requested, which the record has by now. The patch fails if a
// note was added since, which would be lost.
func (p *patch) removeNotes() {
	if len(p.base.Annotations) == 0 {
		return // the resourceVersion is tested
	}
	for _, name := range record.WantedAnnotations() {
		if value, ok := p.base.Annotations[name]; ok {
			p.test(value, "metadata", "annotations", name)
			p.annotate(name, "")
		} else {
			p.test(nil, "metadata", "annotations", name)
		}
	}
}

func (p *patch) setRolling(r lws.RollingUpdateConfiguration) {
	p.add(r, "spec", "rolloutStrategy", "rollingUpdateConfiguration")
}

// setTemplate replaces the template as a whole: a merge would keep added fields. Roles are those of the spec, in its order.
func (p *patch) setTemplate(t record.Template) {
	for i, role := range t.Roles {
		p.add(role.Spec.LeaderWorkerTemplate, "spec", "roles", strconv.Itoa(i), "spec", "leaderWorkerTemplate")
	}
	if len(t.Roles) > 0 {
		return
	}
	p.add(t.LeaderWorkerTemplate, "spec", "leaderWorkerTemplate")
	switch {
	case t.NetworkConfig != nil:
		p.add(t.NetworkConfig, "spec", "networkConfig")
	case p.base.Spec.NetworkConfig != nil:
		p.remove("spec", "networkConfig")
	}
}

func (p *patch) encode() ([]byte, error) {
	raw, err := json.Marshal(append(p.tests, p.changes...))
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return raw, nil
}

// pointer returns a JSON pointer (RFC 6901).
func pointer(path []string) string {
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	var b strings.Builder
	for _, step := range path {
		b.WriteString("/" + escape.Replace(step))
	}
	return b.String()
}

// withoutFinalizer returns the finalizers without the driver's.
func withoutFinalizer(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(f string) bool { return f == record.Finalizer })
}

// changedIfTestFailed marks the error of a JSON patch of which a test failed: that is a lost race, which another observation repeats, and not a
// refusal. The API server answers with a 422 that names no object. Validation and webhooks name one.
func changedIfTestFailed(err error) error {
	var refused apierrors.APIStatus
	if !errors.As(err, &refused) || refused.Status().Code != http.StatusUnprocessableEntity {
		return err
	}
	if d := refused.Status().Details; d != nil && (d.Kind != "" || d.Name != "") {
		return err
	}
	return fmt.Errorf("%w: %w", observe.ErrChanged, err)
}
