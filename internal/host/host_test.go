// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// rig is a host that talks to a fake driver over a unix socket.
type rig struct {
	fake   *hosttest.Driver
	server *plugintest.Server
	host   *host.Host

	mu     sync.Mutex
	events []host.Event
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOf(t, nil)
}

// newRigOf changes the fake before it is served.
func newRigOf(t *testing.T, change func(*hosttest.Driver)) *rig {
	t.Helper()
	r := &rig{fake: hosttest.New()}
	if change != nil {
		change(r.fake)
	}
	r.server = hosttest.Serve(t, r.fake)
	r.host = &host.Host{
		Observe: func(e host.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
		},
		Timing: host.Timing{Wait: 5 * time.Second, Interval: time.Millisecond, Backoff: time.Millisecond},
	}
	dial(t, r)
	return r
}

// dial makes the rig's host talk to its server.
func dial(t *testing.T, r *rig) {
	t.Helper()
	client, err := plugin.Dial(t.Context(), r.server.Address, plugin.DialOptions{})
	require.NoError(t, err, "dial the fake driver")
	t.Cleanup(func() { _ = client.Close() })
	r.host.Driver = client
}

// kinds are the events so far, without progress, which depends on how fast the watch is.
func (r *rig) kinds() []host.EventKind {
	r.mu.Lock()
	defer r.mu.Unlock()
	var kinds []host.EventKind
	for _, e := range r.events {
		if e.Kind != host.EventProgress {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

// eventually waits for an event.
func (r *rig) eventually(t *testing.T, what string, is func(host.Event) bool) {
	t.Helper()
	await.True(t, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.events, is)
	})
}

// requests are the calls that the fake has seen, without reads.
func (r *rig) requests() []string {
	calls := slices.DeleteFunc(r.fake.Calls(), func(call string) bool { return call == "CalculateBatchContext" })
	return slices.Compact(calls)
}

func release(change func(*host.Release)) host.Release {
	r := host.Release{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"},
		ID:       "r1",
		NewID:    func() string { return "new" },
		Owner:    "lockstep-cli/jo@laptop",
		Policy:   &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "50%", "100%"}},
	}
	if change != nil {
		change(&r)
	}
	return r
}

// routes gives a release a policy that splits requests.
func routes(r *host.Release) {
	r.Policy.Traffic = &pb.TrafficPolicy{StableService: "vllm", HttpRoutes: []string{"vllm"}}
}

// deadline bounds a test that would otherwise hang.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	t.Cleanup(cancel)
	return ctx
}

// change has the driver change its context at the nth event of a kind.
func (r *rig) change(kind host.EventKind, nth int, change func(*pb.BatchContext)) {
	observe := r.host.Observe
	r.host.Observe = func(e host.Event) {
		observe(e)
		if e.Kind != kind {
			return
		}
		if nth--; nth == 0 {
			r.fake.Set(change)
		}
	}
}

// refuse has the driver refuse the first requests of batches.
func refuse(times int, reason pb.ErrorReason) func(*testing.T, *rig) {
	return func(_ *testing.T, r *rig) {
		r.fake.OnUpgrade = func(int32, *pb.BatchContext) error {
			if times--; times >= 0 {
				return drivererr.New(reason, "not now")
			}
			return nil
		}
	}
}

// failPromotion has the promotion fail. rollback is what its rollback is refused with.
func failPromotion(rollback error) func(*testing.T, *rig) {
	return func(_ *testing.T, r *rig) {
		r.fake.OnFinalize = func(intent pb.FinalizeIntent, c *pb.BatchContext) error {
			if intent == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
				return rollback
			}
			c.State, c.Reason = pb.State_STATE_FAILED, "ProgressDeadlineExceeded"
			return nil
		}
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	begun := func(c *pb.BatchContext) { c.ReleaseId, c.Owner, c.Batches = "r1", "lockstep-cli/jo@laptop", 3 }
	all := []string{"Initialize r1", "UpgradeBatch 0", "UpgradeBatch 1", "UpgradeBatch 2", "Finalize PROMOTE"}
	routed := []string{
		"Initialize r1", "UpgradeBatch 0", "SetWeight 25", "UpgradeBatch 1", "SetWeight 50", "UpgradeBatch 2", "SetWeight 100", "Finalize PROMOTE",
	}
	cases := map[string]struct {
		reason  string
		release func(*host.Release)
		prepare func(*testing.T, *rig)
		outcome host.Outcome
		calls   []string // equal ones in a row are one
		event   host.EventKind
	}{
		"HappyPath": {
			reason: "batches in order, then the promotion", outcome: host.OutcomePromoted, calls: all,
		},
		"NoPromote": {
			reason:  "the host stops at the last batch",
			release: func(r *host.Release) { r.NoPromote = true },
			outcome: host.OutcomeLastBatch, calls: all[:4],
		},
		"Routed": {
			reason:  "each batch gets its share of requests, and the end returns them by itself",
			release: routes, outcome: host.OutcomePromoted, calls: routed,
		},
		"NoWeightWithoutAStableGroup": {
			reason: "where a batch leaves no stable group, requests follow the groups",
			release: func(r *host.Release) {
				routes(r)
				r.Policy.Style, r.Policy.Batches = pb.Style_STYLE_PARTITION, []string{"50%", "100%"}
			},
			prepare: func(_ *testing.T, r *rig) {
				r.fake.Set(func(c *pb.BatchContext) { c.Replicas, c.StableReady, c.Total = 2, 2, 2 })
			},
			outcome: host.OutcomePromoted,
			calls:   []string{"Initialize r1", "UpgradeBatch 0", "SetWeight 50", "UpgradeBatch 1", "Finalize PROMOTE"},
		},
		"LostAnswerToSetWeight": {
			reason: "a weight whose answer was lost is requested again", release: routes,
			prepare: func(t *testing.T, r *rig) {
				r.server.Stop()
				r.server = hosttest.Serve(t, &losing{Driver: r.fake, left: 2})
				dial(t, r)
			},
			outcome: host.OutcomePromoted, calls: routed,
		},
		"WeightTooLate": {
			reason: "the abort of another host is followed", release: routes,
			prepare: func(_ *testing.T, r *rig) {
				r.fake.OnSetWeight = func(int32, *pb.BatchContext) error {
					go r.fake.Set(func(c *pb.BatchContext) { c.State = pb.State_STATE_ROLLED_BACK })
					return drivererr.New(pb.ErrorReason_ERROR_REASON_CONFLICT, "the object was changed")
				}
			},
			outcome: host.OutcomeRolledBack, calls: routed[:3],
		},
		"NewIDByDefault": {
			reason:  "no release is in flight",
			release: func(r *host.Release) { r.ID = "" },
			outcome: host.OutcomePromoted, calls: append([]string{"Initialize new"}, all[1:]...),
		},
		"AnotherOwnersIsLeftAlone": {
			reason:  "a release in flight of another owner is not taken over",
			release: func(r *host.Release) { r.ID, r.Owner = "", "lockstep-cli/al@desk" },
			prepare: func(_ *testing.T, r *rig) {
				r.fake.Set(func(c *pb.BatchContext) { begun(c); c.State = pb.State_STATE_COMPLETED })
			},
			outcome: host.OutcomePromoted, calls: append([]string{"Initialize new"}, all[1:]...),
		},
		"NewTemplate": {
			reason: "the template changes, and the driver has read it, between the host's decision and its request",
			prepare: func(_ *testing.T, r *rig) {
				changed := false
				r.fake.OnUpgrade = func(batch int32, _ *pb.BatchContext) error {
					if batch == 1 && !changed {
						changed = true
						go r.fake.Set(newTemplate)
						return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, "the template is at revision cccc")
					}
					return nil
				}
			},
			outcome: host.OutcomePromoted, calls: append(slices.Clone(all[:3]), all[1:]...), event: host.EventTemplateChanged,
		},
		"NewTemplateWhilePromoting": {
			reason:  "only what went through the batches is promoted",
			prepare: func(_ *testing.T, r *rig) { r.change(host.EventPromoting, 1, newTemplate) },
			outcome: host.OutcomePromoted, calls: append(slices.Clone(all), all[1:]...),
		},
		"NewTemplateWhileAWeightIsSet": {
			reason: "the new template does not get the weight of the old one", release: routes,
			prepare: func(t *testing.T, r *rig) {
				restarted := false
				r.change(host.EventWeight, 2, func(c *pb.BatchContext) { newTemplate(c); c.TrafficWeight, restarted = 0, true })
				r.fake.OnUpgrade = func(batch int32, c *pb.BatchContext) error {
					assert.False(t, restarted && batch == 0 && c.GetTrafficWeight() != 0,
						"the new template's first group comes while %d%% of the requests are to go to it", c.GetTrafficWeight())
					restarted = restarted && batch != 0
					return nil
				}
			},
			outcome: host.OutcomePromoted, calls: append(slices.Clone(routed[:5]), routed[1:]...),
		},
		"Conflict": {
			reason: "a lost race is run again", prepare: refuse(5, pb.ErrorReason_ERROR_REASON_CONFLICT),
			outcome: host.OutcomePromoted, calls: all, event: host.EventRetrying,
		},
		"Unavailable": {
			reason: "an API server that is away comes back", prepare: refuse(5, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE),
			outcome: host.OutcomePromoted, calls: all, event: host.EventRetrying,
		},
		"DriverRestarts": {
			reason: "the release outlives the driver",
			prepare: func(t *testing.T, r *rig) {
				r.fake.OnUpgrade = func(batch int32, c *pb.BatchContext) error {
					if batch == 1 {
						c.State = pb.State_STATE_UPGRADING
					}
					return nil
				}
				go func() {
					_ = r.fake.Await(deadline(t), func(c *pb.BatchContext, _ []string) bool { return c.GetCurrentBatch() == 1 })
					r.server.Stop()
					r.fake.Set(func(c *pb.BatchContext) { c.State = pb.State_STATE_READY })
					r.server.Start()
				}()
			},
			outcome: host.OutcomePromoted, calls: all,
		},
		"FailureDuringThePause": {
			reason:  "a failure ends the pause early",
			release: func(r *host.Release) { r.Pause = time.Hour },
			prepare: func(_ *testing.T, r *rig) {
				r.change(host.EventPause, 1, func(c *pb.BatchContext) { c.State = pb.State_STATE_FAILED })
			},
			outcome: host.OutcomeFailed, calls: all[:2],
		},
		"FailedPromotionIsRolledBack": {
			reason:  "the promotion is part of the release",
			release: func(r *host.Release) { r.OnFailure = host.OnFailureRollback },
			prepare: failPromotion(nil),
			outcome: host.OutcomeRolledBack, calls: append(slices.Clone(all), "Finalize ROLLBACK"), event: host.EventRollingBack,
		},
		"FailedPromotionThatIsTooLate": {
			reason:  "a handover can't be rolled back",
			release: func(r *host.Release) { r.OnFailure = host.OnFailureRollback },
			prepare: failPromotion(drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "release r1 is promoted")),
			outcome: host.OutcomeFailed, calls: append(slices.Clone(all), "Finalize ROLLBACK"),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if tc.prepare != nil {
				tc.prepare(t, r)
			}
			got, err := r.host.Release(deadline(t), release(tc.release))
			require.True(t, err == nil && got.Outcome == tc.outcome, "%s: Release(...) = %q, %v; want %q", tc.reason, got.Outcome, err, tc.outcome)
			assert.Empty(t, cmp.Diff(tc.calls, r.requests()), "%s: calls: -want, +got", tc.reason)
			if tc.event != "" && !slices.Contains(r.kinds(), tc.event) {
				t.Errorf("%s: events = %v, want %s among them", tc.reason, r.kinds(), tc.event)
			}
		})
	}
}

func TestReleaseResumes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stuck := func(batch int32, c *pb.BatchContext) error {
		if batch == 1 {
			c.State, c.UpdatedReady = pb.State_STATE_UPGRADING, 1
		}
		return nil
	}
	r.fake.OnUpgrade = stuck

	first, interrupt := context.WithCancel(deadline(t))
	defer interrupt()
	go func() {
		_ = r.fake.Await(first, func(c *pb.BatchContext, _ []string) bool { return c.GetCurrentBatch() == 1 })
		interrupt()
	}()
	got, err := r.host.Release(first, release(nil))
	require.True(t, err == nil && got.Outcome == host.OutcomeInterrupted, "Release(...) = %q, %v; want interrupted", got.Outcome, err)
	state := r.fake.Context().GetState()
	require.Equal(t, pb.State_STATE_UPGRADING, state, "the release is %s after the interruption, want it untouched", state)

	r.fake.Set(func(c *pb.BatchContext) { c.State, c.UpdatedReady = pb.State_STATE_READY, 2 })
	got, err = r.host.Release(deadline(t), release(func(r *host.Release) { r.ID = "" }))
	require.True(t, err == nil && got.Outcome == host.OutcomePromoted && got.ReleaseID == "r1",
		"Release(...) = %q of %q, %v; want r1 promoted", got.Outcome, got.ReleaseID, err)
	want := []string{
		"Initialize r1", "UpgradeBatch 0", "UpgradeBatch 1",
		"Initialize r1", "UpgradeBatch 1", "UpgradeBatch 2", "Finalize PROMOTE",
	}
	assert.Empty(t, cmp.Diff(want, r.requests()), "calls: -want, +got")
	if !slices.Contains(r.kinds(), host.EventResumed) {
		t.Errorf("events = %v, want resumed among them", r.kinds())
	}
}

// newTemplate is what the driver's context says once it has read another template.
func newTemplate(c *pb.BatchContext) {
	c.TemplateRevision, c.UpdateRevision, c.State, c.CurrentBatch, c.Target = "cccc", "cccc", pb.State_STATE_HOLDING, nil, ""
}

func TestFinishPromotesOnlyWhatWasLookedAt(t *testing.T) {
	t.Parallel()
	for intent, want := range map[pb.FinalizeIntent]host.Outcome{
		promote: host.OutcomeSuperseded, rollback: host.OutcomeRolledBack,
	} {
		t.Run(intent.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.fake.Set(func(c *pb.BatchContext) { c.ReleaseId, c.State = "r1", pb.State_STATE_READY })
			seen := r.fake.Context()
			r.fake.Set(newTemplate)
			got, err := r.host.Finish(deadline(t), seen, intent, "")
			assert.True(t, err == nil && got.Outcome == want, "Finish(...) = %q, %v; want %q", got.Outcome, err, want)
		})
	}
}

func TestReleaseGivesUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.server.Stop()
	r.host.Timing.Patience = 20 * time.Millisecond
	_, err := r.host.Release(deadline(t), release(nil))
	require.Error(t, err, "Release(...) without a driver succeeded")
}

func TestReleaseRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.host.Release(deadline(t), release(func(r *host.Release) { r.Workload.Name = "other" }))
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, drivererr.Reason(err), "Release(...) = %v, want WORKLOAD_NOT_FOUND", err)
}

// A template that changes after the user has asked for a release is not the one that was asked for.
func TestReleaseOfAnotherTemplate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.host.Release(deadline(t), release(func(release *host.Release) {
		release.ID = ""
		release.NewID = func() string {
			r.fake.SetWorkload("default", "vllm", 4, "cccc")
			return "new"
		}
	}))
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, drivererr.Reason(err), "Release(...) = %v, want REVISION_CHANGED", err)
	got := r.fake.Calls()
	assert.Equal(t, len(got)-1, slices.Index(got, "Initialize new"), "calls %v, want one Initialize", got)
}

// completed ends the release of the context.
func completed(c *pb.BatchContext) { c.State = pb.State_STATE_COMPLETED }

func TestFinishTellsWhatHappensBeforeTheFirstAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.host.Timing.Wait = time.Hour
	r.fake.Set(func(c *pb.BatchContext) { c.ReleaseId, c.State = "r1", pb.State_STATE_READY })
	r.fake.OnFinalize = func(_ pb.FinalizeIntent, c *pb.BatchContext) error {
		c.State = pb.State_STATE_PROMOTING
		return nil
	}
	ctx, done := deadline(t), make(chan error, 1)
	go func() {
		_, err := r.host.Finish(ctx, r.fake.Context(), promote, "")
		done <- err
	}()
	// A display knows what the release was in before.
	r.eventually(t, "the first event has the context that was looked at", func(e host.Event) bool {
		return e.Kind == host.EventPromoting && e.Context.GetState() == pb.State_STATE_READY
	})
	r.eventually(t, "it is PROMOTING", func(e host.Event) bool {
		return e.Kind == host.EventProgress && e.Context.GetState() == pb.State_STATE_PROMOTING
	})
	r.fake.Set(completed)
	assert.NoError(t, <-done, "Finish(...)")
}

func TestResumedReleaseIsIntroducedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.host.Release(deadline(t), release(func(r *host.Release) { r.NoPromote = true }))
	require.NoError(t, err)
	r.fake.Set(func(c *pb.BatchContext) { c.State = pb.State_STATE_PROMOTING })
	r.host.Timing.Wait = time.Hour
	ctx, done := deadline(t), make(chan error, 1)
	go func() {
		_, err := r.host.Release(ctx, release(func(r *host.Release) { r.ID = "" }))
		done <- err
	}()
	r.eventually(t, "it goes on", func(e host.Event) bool { return e.Kind == host.EventResumed })
	r.fake.Set(completed)
	assert.NoError(t, <-done, "Release(...)")
}

const (
	promote  = pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	rollback = pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
)
