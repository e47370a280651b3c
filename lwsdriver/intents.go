// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// The intents of valid requests.

func beginOf(r *pb.InitializeRequest, user string) plan.Intent {
	return plan.Begin{
		ReleaseID: r.GetReleaseId(), Owner: r.GetOwner(), User: user, Policy: r.GetPolicy(), Revision: r.GetTemplateRevision(),
	}
}

func targetOf(r *pb.UpgradeBatchRequest) plan.Intent {
	t := plan.SetTarget{ReleaseID: r.GetReleaseId(), Revision: r.GetUpdateRevision(), Groups: r.GetGroups()}
	if batch, ok := r.GetTarget().(*pb.UpgradeBatchRequest_Batch); ok {
		t.Batch = ptr.To(int(batch.Batch))
	}
	return t
}

func finishOf(r *pb.FinalizeRequest, user string) plan.Intent {
	message := observe.Shorten(r.GetMessage(), record.MaxEndMessage)
	if r.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE {
		return plan.Promote{ReleaseID: r.GetReleaseId(), Revision: r.GetUpdateRevision(), User: user, Message: message}
	}
	return plan.RollBack{ReleaseID: r.GetReleaseId(), Force: r.GetForce(), User: user, Message: message}
}

func weightOf(r *pb.SetWeightRequest) plan.Intent {
	return plan.Route{ReleaseID: r.GetReleaseId(), Revision: r.GetUpdateRevision(), Weight: ptr.To(int(r.GetWeight()))}
}

func mirrorOf(r *pb.SetMirrorRequest) plan.Intent {
	return plan.Route{ReleaseID: r.GetReleaseId(), Revision: r.GetUpdateRevision(), Mirror: ptr.To(int(r.GetPercentage()))}
}

func headerRouteOf(r *pb.SetHeaderRouteRequest) plan.Intent {
	route, _ := traffic.ParseHeaderRoute(r.GetName(), r.GetMatches())
	return plan.Route{ReleaseID: r.GetReleaseId(), Revision: r.GetUpdateRevision(), HeaderRoute: &route}
}

// resetOf accepts any revision: returning all requests is right for every template.
func resetOf(r *pb.ResetRequest) plan.Intent {
	return plan.Route{ReleaseID: r.GetReleaseId(), Reset: true}
}
