// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"fmt"
	"strings"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Settled reports whether a state lasts until the host, a user or the cluster acts. While it is false the driver works and
// the host waits. A state that this version does not know is not settled.
func Settled(state pb.State) bool {
	switch state {
	case pb.State_STATE_UNMANAGED, pb.State_STATE_HOLDING, pb.State_STATE_READY, pb.State_STATE_COMPLETED,
		pb.State_STATE_ROLLED_BACK, pb.State_STATE_FAILED, pb.State_STATE_NOTHING_TO_RELEASE:
		return true
	default:
		return false
	}
}

// Ending reports whether the promotion or rollback of a release in flight was requested, also while it has failed.
func Ending(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_PROMOTING || c.GetState() == pb.State_STATE_ROLLING_BACK ||
		InFlight(c) && c.GetIntent() != pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED
}

// InFlight reports whether a release has begun and not ended. In HOLDING, a release waits for its first batch. A release
// in a state that this version does not know is in flight.
func InFlight(c *pb.BatchContext) bool {
	switch c.GetState() {
	case pb.State_STATE_UNSPECIFIED, pb.State_STATE_UNMANAGED, pb.State_STATE_COMPLETED, pb.State_STATE_ROLLED_BACK,
		pb.State_STATE_NOTHING_TO_RELEASE:
		return false
	default:
		return c.GetReleaseId() != ""
	}
}

// Serving returns the revision that the groups run while no release updates them.
func Serving(c *pb.BatchContext) string {
	if c.GetState() == pb.State_STATE_COMPLETED {
		return c.GetUpdateRevision()
	}
	return c.GetStableRevision()
}

// Waits reports whether the workload's template is another one than its groups run. Without the hold, the workload's own controller
// rolls it out at once.
func Waits(c *pb.BatchContext) bool { return c.GetTemplateRevision() != Serving(c) }

// CamelCase converts an enum value of the contract to the form of condition reasons: NAME_TAKEN to NameTaken.
func CamelCase(name string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(strings.ToLower(name), "_") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// The kinds of workloads.
const (
	KindLeaderWorkerSet  = "LeaderWorkerSet"
	KindDisaggregatedSet = "DisaggregatedSet"
)

// setPrefix begins the name of a DisaggregatedSet.
const setPrefix = "disaggregatedset/"

// NameFor returns the name of a workload of a kind, as commands and kubectl take it: NAME of a LeaderWorkerSet, which is the default, or
// disaggregatedset/NAME. Hosts and the driver use it as a key. It returns an error for any other kind.
func NameFor(kind, name string) (string, error) {
	switch kind {
	case "", KindLeaderWorkerSet, KindDisaggregatedSet:
		return NameOf(&pb.WorkloadRef{Kind: kind, Name: name}), nil
	default:
		return "", fmt.Errorf("kind %q is not known: want %s or %s", kind, KindLeaderWorkerSet, KindDisaggregatedSet)
	}
}

// NameOf returns the name of a workload as NameFor does.
func NameOf(ref *pb.WorkloadRef) string {
	if ref.GetKind() == KindDisaggregatedSet {
		return setPrefix + ref.GetName()
	}
	return ref.GetName()
}

// InCommands returns how commands of lockstep name a workload: with its namespace, since that of a kubeconfig may have one of the same name.
func InCommands(ref *pb.WorkloadRef) string { return NameOf(ref) + " -n " + ref.GetNamespace() }

// IsSet reports whether a name from NameFor is that of a DisaggregatedSet.
func IsSet(name string) bool { return strings.HasPrefix(name, setPrefix) }

// RefOf returns the workload that a name from NameFor names.
func RefOf(namespace, name string) *pb.WorkloadRef {
	if set, ok := strings.CutPrefix(name, setPrefix); ok {
		return &pb.WorkloadRef{Namespace: namespace, Name: set, Kind: KindDisaggregatedSet}
	}
	return &pb.WorkloadRef{Namespace: namespace, Name: name}
}

// KindOf returns the kind of a workload.
func KindOf(ref *pb.WorkloadRef) string { return cmp.Or(ref.GetKind(), KindLeaderWorkerSet) }

// ObjectOf returns the kind and the name of a workload, for messages.
func ObjectOf(ref *pb.WorkloadRef) string { return KindOf(ref) + " " + ref.GetName() }
