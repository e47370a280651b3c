// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// awaitRelease shows the status until the template in the spec is released, or can't be without a user, or the time is over.
func awaitRelease(s *session.Session, o *connect.Options, within time.Duration) error {
	c, err := s.Host.Look(s.Context, s.Ref)
	if err != nil {
		return s.Explain(err, "wait for")
	}
	goal, err := goalOf(s.Context, o, c.GetWorkload())
	if err != nil {
		return s.Explain(err, "wait for")
	}
	ctx, stop := context.WithTimeout(s.Context, within)
	defer stop()
	waits, ended := c.GetMessage(), false
	var failure error
	err = s.Host.Follow(ctx, s.Ref, func(c *pb.BatchContext) {
		if ended {
			return
		}
		s.Status(c)
		if waits, failure = goal.judge(c); failure != nil || waits == "" {
			ended = true
			stop()
		}
	})
	switch err = s.Cause(err); {
	case ended:
		return failure
	case err != nil:
		return s.Explain(err, "wait for")
	case s.Context.Err() != nil:
		return exit.Errorf(exit.Interrupted, "interrupted: %s", waits)
	default:
		return fmt.Errorf("%s is not released after %s: %s\n  to see the status: %s", s.Name, within, waits, s.Hints.Status)
	}
}

// goalOf returns the goal of a wait that begins now, for the object that has the workload since its last handover. It asks the API
// server, since a driver's caches may be older than the caller's last write.
func goalOf(ctx context.Context, o *connect.Options, ref *pb.WorkloadRef) (*goal, error) {
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	object, err := client.Resource(lws.GroupVersion.WithResource("leaderworkersets")).
		Namespace(ref.GetNamespace()).Get(ctx, ref.GetName(), metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get LeaderWorkerSet: %w", err)
	}
	return &goal{object: object.Name, generation: object.Generation}, nil
}

// goal is what a wait is for: every group runs a template, is ready, and no release is in flight. The template is the one that the API
// server had when the wait began, or a later one.
type goal struct {
	object     string
	generation int64
	// template is the first revision that LWS observed at the generation, "" before that. The wait ends early if its release fails;
	// that of an older template may fail, since the newer one replaces it.
	template string
}

// judge returns what a wait still waits for, or "" once the goal is reached. The error ends the wait early.
func (g *goal) judge(c *pb.BatchContext) (waits string, err error) {
	// The object that a handover made is newer than the wait, and its generations count from 1.
	observed := c.GetObservedGeneration() >= g.generation || c.GetWorkload().GetName() != g.object
	if !observed || c.GetTemplateRevision() == "" {
		return fmt.Sprintf("the LeaderWorkerSet controller has observed generation %d, not %d yet", c.GetObservedGeneration(), g.generation), nil
	}
	if g.template == "" {
		g.template = c.GetTemplateRevision()
	}
	owner := cmp.Or(c.GetOwner(), "its host")
	if c.GetUpdateRevision() == g.template {
		switch c.GetState() {
		case pb.State_STATE_FAILED:
			return "", exit.Errorf(exit.Failed, "release %s by %s failed (%s): %s", c.GetReleaseId(), owner, c.GetReason(), c.GetMessage())
		case pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK:
			return "", exit.Errorf(exit.RolledBack, "release %s by %s was rolled back: %s", c.GetReleaseId(), owner,
				cmp.Or(c.GetEndMessage(), c.GetMessage()))
		default:
		}
	}
	if plugin.InFlight(c) {
		return fmt.Sprintf("release %s by %s is %s: %s", c.GetReleaseId(), owner, view.StateWord(c.GetState()), c.GetMessage()), nil
	}
	return awaitsGroups(c, owner), nil
}

// awaitsGroups returns why not every group of the workload runs the template and is ready, or "".
func awaitsGroups(c *pb.BatchContext, owner string) string {
	groups, older, done := int32(0), false, int32(0)
	for _, g := range c.GetGroups() {
		if g.GetRole() != pb.GroupRole_GROUP_ROLE_STABLE {
			continue
		}
		groups++
		switch at := g.GetRevision() == c.GetTemplateRevision(); {
		case at && g.GetReady():
			done++
		case !at && g.GetRevision() != "":
			older = true
		}
	}
	switch held := c.GetState() != pb.State_STATE_UNMANAGED; {
	case done == groups && groups == c.GetReplicas():
		return ""
	case older && held:
		return fmt.Sprintf("template %s is held and waits for a release by %s", c.GetTemplateRevision(), owner)
	default:
		return fmt.Sprintf("%d of %d groups run template %s and are ready", done, max(groups, c.GetReplicas()), c.GetTemplateRevision())
	}
}
