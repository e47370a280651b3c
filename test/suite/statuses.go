// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/statuses"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// statusesVariable names the directory to which RecordStatuses writes.
const statusesVariable = "LOCKSTEP_TEST_STATUSES"

// RecordStatuses records a host's objects of these kinds, and the state of a workload as the host requests it, until the test ends, in a
// file named after the test. It does nothing unless LOCKSTEP_TEST_STATUSES names a directory.
func RecordStatuses(t *testing.T, c *cluster.Cluster, request *pb.CalculateBatchContextRequest, kinds ...schema.GroupVersionResource) {
	t.Helper()
	dir := os.Getenv(statusesVariable)
	if dir == "" {
		return
	}
	file, err := os.Create(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+".jsonl"))
	require.NoError(t, err)
	namespace := request.GetWorkload().GetNamespace()
	driver, err := lwsdriver.New(c.RESTConfig(), lwsdriver.Options{ReadOnly: true, Silent: true, Namespace: namespace})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ran, recorded := make(chan error, 1), make(chan error, 1)
	go func() { ran <- driver.Run(ctx) }()
	r := &statusRecorder{driver: driver, request: request, objects: dynamic.NewForConfigOrDie(c.RESTConfig()), kinds: kinds, known: map[string]string{}}
	go func() {
		encoder := json.NewEncoder(file)
		for ctx.Err() == nil {
			if line, changed := r.next(ctx); changed {
				if err := encoder.Encode(line); err != nil {
					recorded <- err
					return
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		recorded <- file.Close()
	}()
	t.Cleanup(func() {
		cancel()
		for _, done := range []chan error{ran, recorded} {
			assert.NoError(t, <-done)
		}
	})
}

type statusRecorder struct {
	driver  *lwsdriver.Driver
	request *pb.CalculateBatchContextRequest
	objects dynamic.Interface
	kinds   []schema.GroupVersionResource

	// known are the resourceVersions of the recorded objects.
	known   map[string]string
	context *pb.BatchContext
}

// next returns what has changed since the last call.
func (r *statusRecorder) next(ctx context.Context) (line statuses.Line, changed bool) {
	now := map[string]string{}
	for _, kind := range r.kinds {
		list, err := r.objects.Resource(kind).Namespace(r.request.GetWorkload().GetNamespace()).List(ctx, metav1.ListOptions{})
		if err != nil {
			return line, false
		}
		for _, o := range list.Items {
			key := statuses.Key(&o)
			if now[key] = o.GetResourceVersion(); now[key] == r.known[key] {
				continue
			}
			o.SetManagedFields(nil)
			unstructured.RemoveNestedField(o.Object, "data") // of a ControllerRevision
			line.Objects = append(line.Objects, o)
		}
	}
	for key := range r.known {
		if now[key] == "" {
			line.Deleted = append(line.Deleted, key)
		}
	}
	answer, err := r.driver.CalculateBatchContext(ctx, r.request)
	if err == nil && !proto.Equal(answer.GetContext(), r.context) {
		if line.Context, err = protojson.Marshal(answer.GetContext()); err != nil {
			return line, false
		}
		r.context = answer.GetContext()
	}
	r.known = now
	return line, len(line.Objects)+len(line.Deleted)+len(line.Context) > 0
}
