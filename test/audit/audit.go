// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package audit reads the audit log of a test cluster's API server.
//
//	from := audit.Mark(t, kube, namespace)
//	release()
//	requests := audit.Between(t, c.AuditLog(), from, audit.Mark(t, kube, namespace), namespace)
package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
)

// maxLine is the maximum length of a line.
const maxLine = 16 << 20

// Event is a request, with the fields of audit.k8s.io/v1 that tests use.
type Event struct {
	AuditID, Verb, RequestURI, UserAgent string
	// ReceivedAt is when the request reached the API server.
	ReceivedAt time.Time `json:"requestReceivedTimestamp"`
	User       struct{ Username string }
	// ResponseStatus has the HTTP status code.
	ResponseStatus struct{ Code int }
	ObjectRef      struct{ APIGroup, Resource, Subresource, Namespace, Name string }
}

// Resource returns the resource with its subresource, as in "pods/status", or the URI of a request without a resource.
func (e Event) Resource() string {
	switch {
	case e.ObjectRef.Resource == "":
		return e.RequestURI
	case e.ObjectRef.Subresource != "":
		return e.ObjectRef.Resource + "/" + e.ObjectRef.Subresource
	default:
		return e.ObjectRef.Resource
	}
}

// String returns verb and resource, as in "update pods/status".
func (e Event) String() string { return e.Verb + " " + e.Resource() }

// IsWrite reports whether the request writes an object.
func (e Event) IsWrite() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, e.Verb)
}

// IsRead reports whether the request reads objects once. A watch does not.
func (e Event) IsRead() bool { return e.Verb == "get" || e.Verb == "list" }

// Read returns the requests whose lines contain a text, in the order of the log. A request with two lines, such as a watch that
// starts and ends, is returned once. An incomplete last line is ignored.
func Read(log io.Reader, containing string) ([]Event, error) {
	var events []Event
	var broken error
	seen := map[string]bool{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if broken != nil {
			return nil, broken
		}
		if !bytes.Contains(lines.Bytes(), []byte(containing)) {
			continue
		}
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			broken = fmt.Errorf("decode the audit log: %w", err)
			continue
		}
		if !seen[e.AuditID] {
			seen[e.AuditID] = true
			events = append(events, e)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return events, nil
}

// ReadFile reads the log at a path.
func ReadFile(path, containing string) ([]Event, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer func() { _ = f.Close() }()
	return Read(f, containing)
}

// Mark makes a request that marks a position in the log, and returns its name for [Between].
func Mark(t testing.TB, kube kubernetes.Interface, namespace string) string {
	t.Helper()
	mark := "mark-" + rand.String(10)
	_, err := kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), mark, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "the request that marks the log: %v", err)
	return mark
}

// Between waits until the log at a path has the mark to, and returns all requests between from and to whose lines contain a text. An
// empty from is the start of the log.
func Between(t testing.TB, path, from, to, containing string) []Event {
	t.Helper()
	var events []Event
	await.Nil(t, "the audit log has "+to, func(context.Context) error {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		raw, _, found := bytes.Cut(raw, []byte(to))
		if !found {
			return errors.New("it has not")
		}
		if from != "" {
			if _, raw, found = bytes.Cut(raw, []byte(from)); !found {
				return errors.New("it lacks " + from)
			}
			_, raw, _ = bytes.Cut(raw, []byte("\n"))
		}
		events, err = Read(bytes.NewReader(raw), containing)
		return err
	})
	return events
}
