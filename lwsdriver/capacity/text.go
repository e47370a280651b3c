// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Text lists resources for users, devices first: "nvidia.com/gpu 16, cpu 64, memory 1Ti". Empty means that nothing is requested.
func Text(list corev1.ResourceList) string {
	names := slices.SortedFunc(maps.Keys(list), devicesFirst)
	parts := make([]string, 0, len(names))
	for _, name := range names {
		if q := list[name]; !q.IsZero() {
			parts = append(parts, fmt.Sprintf("%s %s", name, q.String()))
		}
	}
	return strings.Join(parts, ", ")
}

// devicesFirst orders resources by name, those of device plugins first.
func devicesFirst(a, b corev1.ResourceName) int {
	if extended(a) == extended(b) {
		return cmp.Compare(a, b)
	}
	if extended(a) {
		return -1
	}
	return 1
}

// String returns what is missing, for users.
func (s Shortage) String() string {
	return fmt.Sprintf("%s needs %s, and %s is left (hard %s, used %s)",
		s.Resource, s.Needed.String(), s.Left.String(), s.Hard.String(), s.Used.String())
}
