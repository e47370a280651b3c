// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// listWorkloads shows the workloads of a namespace, or of all: those under hold as the driver sees them, and those that the API server has beside
// them, unless the driver is at an address.
func listWorkloads(s *session.Session, o *connect.Options) error {
	namespace := s.Ref.GetNamespace()
	held, err := underHold(s.Context, s.Client, &pb.WatchWorkloadsRequest{Namespace: namespace, IncludeGroups: s.HasDocuments()})
	if err != nil {
		return s.Explain(err, "list")
	}
	var others []*pb.WorkloadRef
	if s.Hints.Inside {
		others = notAdopted(s.Context, o, namespace)
	}
	if s.HasDocuments() {
		for _, c := range held {
			s.Document(c)
		}
		for _, ref := range others {
			switch c, err := s.Host.Look(s.Context, ref); {
			case err == nil:
				s.Document(c)
			case drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND: // else it was deleted since
				return s.Explain(err, "list")
			}
		}
		return nil
	}
	text := view.List(held, others, namespace == "", s.Hints.Reach)
	if text == "" {
		text = "no workload in namespace " + namespace + "; those of all namespaces: " + s.Hints.List + "\n"
		if namespace == "" {
			text = "no workload in any namespace\n"
		}
	}
	_, err = fmt.Fprint(s.Text, text)
	return err
}

// underHold returns the workloads that the driver holds.
func underHold(ctx context.Context, driver host.Watcher, request *pb.WatchWorkloadsRequest) (held []*pb.BatchContext, err error) {
	ctx, stop := context.WithTimeout(ctx, session.ShortRetry)
	defer stop()
	// Without any answer the deadline is the error, as of a call.
	synced, last := false, grpcstatus.Errorf(codes.DeadlineExceeded, "the driver has not reported the workloads for %s", session.ShortRetry)
	err = host.Observe(plugin.FollowWorkloads(ctx, driver, request), func(r *pb.WatchWorkloadsResponse) {
		switch {
		case synced: // a change that was on its way
		case r.GetContext() != nil:
			held = append(held, r.GetContext())
		case r.GetSynced():
			synced = true
			// A watch has no end. The first synced follows all workloads.
			stop()
		}
	}, func(lost error) {
		// The next stream sends all workloads again.
		held, last = nil, lost
	})
	if err == nil && !synced {
		err = last
	}
	return held, err
}

// notAdopted returns the workloads of users that have no record. It returns none of a kind that the cluster does not have, or the user may
// not list.
func notAdopted(ctx context.Context, o *connect.Options, namespace string) (found []*pb.WorkloadRef) {
	for _, kind := range []string{"", observe.KindSet} {
		client, err := o.Workloads(&pb.WorkloadRef{Namespace: namespace, Kind: kind})
		if err != nil {
			return nil
		}
		all, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for i := range all.Items {
			w := &all.Items[i]
			if _, adopted := w.Annotations[record.RecordAnnotation]; !adopted && session.IsUsers(w) {
				found = append(found, &pb.WorkloadRef{Namespace: w.Namespace, Name: w.Name, Kind: kind})
			}
		}
	}
	return found
}
