// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Limits is a rolling update configuration as LWS applies it to a number of replicas.
type Limits struct {
	Replicas, Partition, MaxUnavailable, MaxSurge int
}

// LimitsOf scales percentages as LWS does: surge up, unavailable down, and surge at most replicas. An invalid value
// counts as 0; LWS's webhook refuses it.
func LimitsOf(r lws.RollingUpdateConfiguration, replicas int) Limits {
	return Limits{
		Replicas: replicas, Partition: int(ptr.Deref(r.Partition, 0)),
		MaxUnavailable: scaled(r.MaxUnavailable, replicas, false),
		MaxSurge:       min(scaled(r.MaxSurge, replicas, true), replicas),
	}
}

func scaled(v intstr.IntOrString, replicas int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(&v, replicas, up)
	if err != nil {
		return 0
	}
	return n
}

// Batch returns how many groups may be updated at once.
func (l Limits) Batch() int { return l.MaxUnavailable + l.MaxSurge }

// Surge returns how many groups LWS adds at the beginning of an update, when none is updated: fewer than maxSurge if that is all
// replicas, since it does not add those that may be unavailable.
func (l Limits) Surge() int { return l.wanted(l.Replicas) - l.Replicas }

// wanted is LWS's calculateRollingUpdateReplicas: surge groups are deleted once the groups that are not updated and ready fit into
// maxUnavailable.
func (l Limits) wanted(unready int) int {
	if unready <= l.MaxSurge {
		return l.Replicas + max(unready-l.MaxUnavailable, 0)
	}
	return l.Replicas + l.MaxSurge
}

// ReplicaState is LWS's replicaState of a group.
type ReplicaState struct{ Ready, Updated bool }

// Leaders is the leader StatefulSet as LWS has set it.
type Leaders struct {
	Replicas, Partition int
	// Unavailable is how many of its groups may be unavailable, Noted LWS's annotation of its replicas.
	Unavailable, Noted int
}

// Reconcile returns what LWS makes of the leader StatefulSet. The states are those of its groups, and updated is true if the
// template has changed since.
func (l Limits) Reconcile(sts Leaders, states []ReplicaState, updated bool) Leaders {
	partition, replicas := l.parameters(sts, states, updated)
	return Leaders{Partition: max(partition, l.Partition), Replicas: replicas, Noted: l.Replicas, Unavailable: max(l.Batch(), 1)}
}

// parameters is LWS's rollingUpdateParameters, case by case, for a StatefulSet that exists.
func (l Limits) parameters(sts Leaders, states []ReplicaState, updated bool) (partition, replicas int) {
	// At first the partition covers all existing groups, and only surge groups start the new template.
	if updated {
		partition = min(l.Replicas, sts.Replicas)
		if sts.Replicas < l.Replicas {
			return partition, l.Replicas
		}
		return partition, l.wanted(l.Replicas)
	}
	// The update is over, and the surge groups are deleted.
	if sts.Partition == 0 && sts.Replicas == l.Replicas {
		return 0, l.Replicas
	}
	if sts.Replicas < l.Replicas {
		return sts.Partition, l.Replicas
	}
	burst, replicas := l.Replicas+l.MaxSurge, l.wanted(unready(states, l.Replicas))
	// Replicas changed during the update. The annotation still has those of the last pass.
	if sts.Noted != l.Replicas {
		return min(sts.Partition, burst), replicas
	}
	step := l.MaxUnavailable + l.MaxSurge - (burst - sts.Replicas)
	return rollingUpdatePartition(states, sts.Replicas, step, sts.Partition), replicas
}

// unready is LWS's calculateLWSUnreadyReplicas: the wanted groups that are not updated and ready.
func unready(states []ReplicaState, replicas int) int {
	n := 0
	for i := range replicas {
		if i >= len(states) || !states[i].Ready || !states[i].Updated {
			n++
		}
	}
	return n
}

// rollingUpdatePartition is LWS's function of this name.
func rollingUpdatePartition(states []ReplicaState, replicas, step, current int) int {
	done := 0
	// Only groups in one run from the last index are done: the partition covers no others.
	for i := len(states) - 1; i >= 0 && states[i].Ready && states[i].Updated; i-- {
		done++
	}
	floor := max(replicas-done-step, 0)
	partition := floor
	for i := range floor {
		if !states[i].Ready {
			partition++ // it counts as unavailable already
		}
	}
	// To update a group that is down costs nothing, and the update would get stuck behind it.
	for i := min(partition, replicas-1); i >= floor; i-- {
		if states[i].Ready && !states[i].Updated {
			break
		}
		partition = i
	}
	return min(partition, current)
}
