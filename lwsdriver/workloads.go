// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"sync"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/encoded"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// WatchWorkloads sends the context of every workload under hold that the caller sees, and then each change, including added and removed
// workloads. It follows the workloads that the engine has processed, so it requests nothing of the API server but what the caller sees.
func (d *Driver) WatchWorkloads(req *pb.WatchWorkloadsRequest, stream grpc.ServerStreamingServer[pb.WatchWorkloadsResponse]) error {
	if err := d.serves(req.GetNamespace()); err != nil {
		return err
	}
	// A workload that changes while the present ones are listed must not be missed.
	changed, stop := d.engine.Observer.Changes.SubscribeAll()
	defer stop()
	w := workloadsWatch{driver: d, request: req, stream: stream, sent: map[types.NamespacedName]encoded.Sum{}}
	if err := w.sendChanges(d.engine.Observer.Held()); err != nil {
		return err
	}
	if err := stream.Send(&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Synced{Synced: true}}); err != nil {
		return err
	}
	for {
		select {
		case <-changed.Signal:
			if err := w.sendChanges(changed.Take()); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		case <-d.stopped:
			return drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "the driver is stopping: watch again at another driver")
		}
	}
}

// serves returns an error if the driver can't serve a namespace. Empty means all that it serves.
func (d *Driver) serves(namespace string) error {
	if own := d.options.Namespace; own != "" && namespace != "" && own != namespace {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "this driver serves namespace %q only, not %q: use one that serves it", own, namespace)
	}
	return d.engine.Ready()
}

// workloadsWatch is one stream.
type workloadsWatch struct {
	driver  *Driver
	request *pb.WatchWorkloadsRequest
	stream  grpc.ServerStreamingServer[pb.WatchWorkloadsResponse]
	// sent identifies what the receiver has.
	sent map[types.NamespacedName]encoded.Sum
}

// sendChanges sends what changed about some workloads.
func (w *workloadsWatch) sendChanges(keys []types.NamespacedName) error {
	for _, key := range keys {
		if ns := w.request.GetNamespace(); ns != "" && ns != key.Namespace || !w.driver.engine.Covers(key) {
			continue
		}
		if err := w.sendChange(key); err != nil {
			return err
		}
	}
	return nil
}

// sendChange sends what changed about a workload, if anything did and the caller sees it.
func (w *workloadsWatch) sendChange(key types.NamespacedName) error {
	last, known := w.sent[key]
	held := observe.UnderHold(w.driver.engine.Observer.Workload(key))
	if !held && !known {
		return nil
	}
	if w.request.GetNamespace() == "" { // else the server has checked the permission for it
		switch sees, err := access.Sees(w.stream.Context(), key.Namespace); {
		case err != nil:
			return err
		case !sees:
			// Even a removal would tell of a namespace that the caller no longer sees.
			delete(w.sent, key)
			return nil
		}
	}
	if !held {
		delete(w.sent, key)
		return w.stream.Send(&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: observe.RefOf(key)}})
	}
	var state *encoded.Message
	s, decision, err := w.driver.engine.Look(key)
	if err == nil {
		state, err = w.driver.sharedState(s, decision, w.request.GetIncludeGroups())
	} else {
		state, err = encodeState(failedContext(key, err))
	}
	// The state of a workload deleted meanwhile is an error; its removal comes next.
	if err != nil || state.Sum == last || !observe.UnderHold(w.driver.engine.Observer.Workload(key)) {
		return err
	}
	w.sent[key] = state.Sum
	return w.stream.SendMsg(state) //nolint:wrapcheck // the stream's own
}

// sharedState returns the context of an observation as the watches send it, encoded once for all that share the snapshot.
func (d *Driver) sharedState(s *observe.Snapshot, decision plan.Decision, rows bool) (*encoded.Message, error) {
	encode, _ := s.Shared.LoadOrStore(rows, sync.OnceValues(func() (*encoded.Message, error) {
		return encodeState(d.describe(s, decision, rows))
	}))
	return encode.(func() (*encoded.Message, error))()
}

func encodeState(c *pb.BatchContext) (*encoded.Message, error) {
	return encoded.New(&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{Context: c}})
}
