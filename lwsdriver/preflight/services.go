// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

var serviceRules = []Rule{{
	ID: "ServiceSelectsWorkers", Severity: warning, Needs: Services,
	Title:   "A Service selects workers",
	Why:     "Only leaders answer requests: those that reach a worker fail, and the share of a release is counted in pods that do not serve",
	Details: "Headless Services are skipped: they are for DNS names, such as the one that LWS creates",
	Fix:     fmt.Sprintf("Add %s: \"0\" to its selector", lws.WorkerIndexLabelKey),
	// Check finds Services that lead requests to workers.
	Check: func(s *Inventory, report func(Hit)) {
		w := s.Pods()
		s.judgeServices(report, func(_ map[string]string, leaders, workers int) string {
			if workers == 0 {
				return ""
			}
			return fmt.Sprintf("%d of the %d pods of %s/%s that it selects are workers", workers, leaders+workers, w.Namespace, w.Name)
		})
	},
}, {
	ID: "ServiceExcludesAdded", Severity: warning, Needs: Services,
	Title: "A Service selects the groups of one LeaderWorkerSet only",
	Why:   "The groups that a release adds belong to another LeaderWorkerSet. They get none of the Service's requests, so their batches are promoted untested",
	Details: "Releases that route requests pass, and so do releases in place, which add no group. A Service that selects groups of a DisaggregatedSet " +
		"by the label `app` never passes after an upgrade of LeaderWorkerSet to v0.10.0, which gives new groups another one",
	Fix: "Have the release route the requests (--service, --http-route), or select by a label of the pod templates instead",
	// Check finds Services with the name of the workload in their selector, or with the label app of its pods, if LWS gives new ones another. A
	// Service that selects workers by the name needs another selector first.
	Check: func(s *Inventory, report func(Hit)) {
		if s.part != nil {
			s.judgeServices(func(h Hit) {
				h.Fix = "Select by " + disaggregated.SetNameLabelKey + " and " + disaggregated.RoleLabelKey + ", or by another label of the pod templates"
				report(h)
			}, func(selector map[string]string, leaders, workers int) string {
				has, next := selector["app"], s.part.set.Roles[s.part.index].App
				if has == "" || next == "" || has == next || leaders+workers == 0 {
					return ""
				}
				return fmt.Sprintf("it selects by app: %s, and LeaderWorkerSet has since been upgraded: it gives new groups app: %s, so a release leaves it none", has, next)
			})
		}
		if s.Peak().Added == 0 || s.Policy.Traffic != nil {
			return
		}
		name := s.Pods().Name
		s.judgeServices(report, func(selector map[string]string, leaders, workers int) string {
			if selector[lws.SetNameLabelKey] != name || leaders == 0 || workers > 0 {
				return ""
			}
			return fmt.Sprintf("it selects by %s: %s, so the groups that %s adds get none of its requests", lws.SetNameLabelKey, name, s.style())
		})
	},
}, {
	ID: "RolesNotPaired", Whole: true, Severity: warning, Needs: Services,
	Title: "A Service or InferencePool leads requests to a role at every revision",
	Why: "A release splits requests at its own Service and pool only. Through this one, groups of one revision call groups of the other, which may " +
		"not understand their KV cache",
	Details: "Only for a [DisaggregatedSet](disaggregated.md#traffic) whose release routes requests. Headless Services are skipped, and pools " +
		"unless the policy names one. How a router pairs is its own configuration, which is not read",
	Fix:     "Have the router choose pods by " + disaggregated.RevisionLabelKey + ", or by the pool of the policy",
	Applies: func(s *Inventory) bool { return len(s.Roles) > 0 && s.Policy.Traffic != nil },
	// Check finds Services that select other roles than the entry role, whatever their revision.
	Check: func(s *Inventory, report func(Hit)) {
		for i := range s.Roles {
			if i == s.EntryRole() {
				continue
			}
			role := s.role(i)
			inSet := func(h Hit) { report(role.part.inSet(h)) }
			judge := func(selector map[string]string, leaders, workers int) string {
				if _, revision := selector[disaggregated.RevisionLabelKey]; revision || leaders+workers == 0 {
					return ""
				}
				return fmt.Sprintf("it selects %d pods by other labels than their revision", leaders+workers)
			}
			role.judgeServices(inSet, judge)
			for _, o := range s.Pools {
				if own := s.Policy.Traffic.Pool; own == nil || o.GetName() != own.Stable && o.GetName() != own.Canary {
					role.judgeSelector(traffic.KindInferencePool, o, "spec.selector.matchLabels", traffic.PoolLabels(o), inSet, judge)
				}
			}
		}
	},
}}

// EntryRole returns the index of the role that the requests of the release enter by: the one whose leaders its Service selects, or else, as
// if it selects those of several, the first.
func (s *Inventory) EntryRole() int {
	var selected []int
	for _, o := range s.Services {
		if s.Policy.Traffic == nil || o.Name != s.Policy.Traffic.StableService || o.Namespace != s.Workload.Namespace {
			continue
		}
		for i := range s.Roles {
			w := s.role(i).Pods()
			// A role that is scaled to 0 has no pod that the selector could match.
			w.Groups = max(w.Groups, 1)
			if leaders, _ := w.Selected(labels.SelectorFromSet(o.Spec.Selector)); leaders > 0 {
				selected = append(selected, i)
			}
		}
	}
	if len(selected) != 1 {
		return 0
	}
	return selected[0]
}

// judgeServices reports the selectors of which judge returns a message. It is called with the number of the workload's pods that a Service
// selects. Headless Services are skipped: they are for DNS names, such as those that LWS creates.
func (s *Inventory) judgeServices(report func(Hit), judge func(selector map[string]string, leaders, workers int) string) {
	for _, o := range s.Services {
		if o.Spec.ClusterIP != corev1.ClusterIPNone && !ofLWS(o) {
			s.judgeSelector(traffic.KindService, o, "spec.selector", o.Spec.Selector, report, judge)
		}
	}
}

// judgeSelector is judgeServices for the selector of an object. An empty one selects nothing.
func (s *Inventory) judgeSelector(
	kind string, o metav1.Object, field string, selector map[string]string, report func(Hit), judge func(selector map[string]string, leaders, workers int) string,
) {
	w := s.Pods()
	if len(selector) == 0 || o.GetNamespace() != w.Namespace {
		return
	}
	leaders, workers := w.Selected(labels.SelectorFromSet(selector))
	if message := judge(selector, leaders, workers); message != "" {
		report(Hit{Object: &pb.ObjectRef{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}, Field: field, Message: message})
	}
}

func ofLWS(o *corev1.Service) bool {
	return slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == kind || r.Kind == "StatefulSet" || r.Kind == "Pod"
	})
}

var routeRules = []Rule{{
	ID: "RouteRuleNamed", Whole: true, Severity: note, Needs: Routes,
	Title: "A rule that leads to the workload has a name",
	Why: "A policy can be attached to that rule alone, by sectionName. It would not apply to the rule that a header route adds, so that the " +
		"header would bypass authentication. SetHeaderRoute refuses such a rule",
	Details: "An error if the release routes by header (`--canary-header`, `--canary-cookie`), and harmless otherwise. Names are checked " +
		"and policies are not: the driver doesn't know their kinds, and one may be created later. [Traffic](traffic.md#limits)",
	Fix:     "Attach policies to the whole route and remove the rule's name, or release without header routes",
	Applies: func(s *Inventory) bool { return s.Policy.Traffic != nil && len(s.Policy.Traffic.Routes) > 0 },
	Check: func(s *Inventory, report func(Hit)) {
		for _, r := range s.Routes {
			if !slices.Contains(s.Policy.Traffic.Routes, r.Key) {
				continue
			}
			for index, name := range traffic.NamedRules(r, *s.Policy.Traffic) {
				h := Hit{
					Object: &pb.ObjectRef{Kind: r.Key.Kind, Namespace: s.Workload.Namespace, Name: r.Key.Name}, Field: fmt.Sprintf("spec.rules[%d].name", index),
					Message: fmt.Sprintf("rule %q can't get a header route", name),
				}
				if s.Expect.HeaderRoutes {
					h.Severity, h.Message = severe, fmt.Sprintf("rule %q can't get the header routes of the release", name)
				}
				report(h)
			}
		}
	},
}}
