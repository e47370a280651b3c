// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strings"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
func KindOf(ref *pb.WorkloadRef) string {
	if ref.GetKind() == "" {
		return KindLeaderWorkerSet
	}
	return ref.GetKind()
}

// ObjectOf returns the kind and the name of a workload, for messages.
func ObjectOf(ref *pb.WorkloadRef) string { return KindOf(ref) + " " + ref.GetName() }
