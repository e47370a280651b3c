// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// audited is one request that the API server has answered.
type audited struct {
	Stage, Verb string
	// At is when the request came.
	At   time.Time `json:"requestReceivedTimestamp"`
	User struct{ Username string }
	// ResponseStatus has the HTTP status code.
	ResponseStatus struct{ Code int }
	ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
}

func (a audited) String() string { return a.Verb + " " + a.ObjectRef.Resource + "/" + a.ObjectRef.Name }

func (a audited) isWrite() bool { return !slices.Contains([]string{"get", "list", "watch"}, a.Verb) }

// writes are the writes of drivers in this namespace that succeeded so far, events aside, as the API server's audit log has them. The
// log is read up to a request of our own, so that nothing that came before is missing.
func (e *env) writes() []string {
	e.t.Helper()
	marker := "marker-" + rand.String(10)
	_, _ = e.kube.CoreV1().ConfigMaps(e.namespace).Get(e.t.Context(), marker, metav1.GetOptions{})
	var found []string
	e.eventually("the audit log has the marker", func(context.Context) error {
		found = nil
		raw, err := os.ReadFile(e.cluster.AuditLog())
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(bytes.NewReader(raw))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if !bytes.Contains(lines.Bytes(), []byte(e.namespace)) {
				continue
			}
			var a audited
			if json.Unmarshal(lines.Bytes(), &a) != nil || a.Stage != "ResponseComplete" || a.ObjectRef.Namespace != e.namespace {
				continue
			}
			if a.ObjectRef.Name == marker {
				return nil
			}
			if a.isWrite() && a.User.Username == driver.User && a.ObjectRef.Resource != "events" && a.ResponseStatus.Code < http.StatusBadRequest {
				found = append(found, a.String())
			}
		}
		return errors.New("it has not")
	})
	return found
}

// busiest says who wrote most in the last minute, all tests together: a controller that goes round in circles keeps all others waiting.
func (e *env) busiest() string {
	if e.cluster.AuditLog() == "" {
		return ""
	}
	f, err := os.Open(e.cluster.AuditLog())
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil {
		_, _ = f.Seek(max(0, info.Size()-64<<20), io.SeekStart)
	}
	since, total, counts := time.Now().Add(-time.Minute), 0, map[string]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var a audited
		if json.Unmarshal(lines.Bytes(), &a) != nil || a.At.Before(since) || !a.isWrite() {
			continue
		}
		total++
		o := a.ObjectRef
		if o.Subresource != "" {
			o.Resource += "/" + o.Subresource
		}
		counts[fmt.Sprintf("%s %s %s in %s: %d", a.User.Username, a.Verb, o.Resource, o.Namespace, a.ResponseStatus.Code)]++
	}
	who := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return counts[b] - counts[a] })
	var b strings.Builder
	fmt.Fprintf(&b, "%d writes in the last minute, all tests together; most of them:\n", total)
	for _, w := range who[:min(8, len(who))] {
		fmt.Fprintf(&b, "%d times %s\n", counts[w], w)
	}
	return b.String()
}
