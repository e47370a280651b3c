// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// holdPartition is above any number of groups, so that a scale-up adds stable groups, too.
const holdPartition = 1_000_000

// Hold returns the configuration under which LWS never rolls by itself. maxSurge must be 0, since LWS creates surge
// groups at the new revision even under a partition; the webhook then requires maxUnavailable to be at least 1.
func Hold() lws.RollingUpdateConfiguration {
	return lws.RollingUpdateConfiguration{
		Partition:      ptr.To[int32](holdPartition),
		MaxUnavailable: intstr.FromInt32(1),
		MaxSurge:       intstr.FromInt32(0),
	}
}

// Native returns the configuration under which LWS rolls every group at the user's own pace.
func Native(saved lws.RollingUpdateConfiguration) lws.RollingUpdateConfiguration {
	saved.Partition = ptr.To[int32](0)
	return saved
}

// SameRolling reports whether two configurations mean the same to LWS.
func SameRolling(a, b lws.RollingUpdateConfiguration) bool {
	return ptr.Deref(a.Partition, 0) == ptr.Deref(b.Partition, 0) &&
		a.MaxUnavailable == b.MaxUnavailable && a.MaxSurge == b.MaxSurge
}

// Absorb returns the user's configuration when the driver had set one and found another: fields that differ were changed
// by the user and replace the saved ones.
func Absorb(saved, set, found lws.RollingUpdateConfiguration) lws.RollingUpdateConfiguration {
	if ptr.Deref(found.Partition, 0) != ptr.Deref(set.Partition, 0) {
		saved.Partition = found.Partition
	}
	if found.MaxUnavailable != set.MaxUnavailable {
		saved.MaxUnavailable = found.MaxUnavailable
	}
	if found.MaxSurge != set.MaxSurge {
		saved.MaxSurge = found.MaxSurge
	}
	return saved
}

// checkRolling refuses a configuration that LWS never accepts, so that no user's spec can have had it.
func checkRolling(r lws.RollingUpdateConfiguration) error {
	if n := ptr.Deref(r.Partition, 0); n < 0 {
		return fmt.Errorf("partition %d is negative", n)
	}
	for _, f := range []struct {
		name string
		intstr.IntOrString
	}{{"maxUnavailable", r.MaxUnavailable}, {"maxSurge", r.MaxSurge}} {
		if _, err := ParseQuantity(f.String()); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		// ParseQuantity accepts "3" for a policy; LWS accepts the number 3 only.
		if f.Type == intstr.String && !strings.HasSuffix(f.StrVal, "%") {
			return fmt.Errorf("%s: %q is neither a number nor a percentage", f.name, f.StrVal)
		}
	}
	return nil
}

// WantedAnnotations returns the annotations that Wanted reads. The driver's next write of the record removes them.
func WantedAnnotations() []string {
	return []string{WantedPartition, WantedMaxUnavailable, WantedMaxSurge}
}

// Wanted returns the user's configuration with the admission policy's annotations applied: the policy has set the hold in
// the spec and saved the requested values in them. A value that no policy would have written is an error.
func Wanted(saved lws.RollingUpdateConfiguration, annotations map[string]string) (lws.RollingUpdateConfiguration, error) {
	if v, ok := annotations[WantedPartition]; ok {
		// Every editor of the workload can write the annotations, so they are checked like a spec.
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 0 {
			return saved, fmt.Errorf("%s: %q is not a number of groups", WantedPartition, v)
		}
		saved.Partition = ptr.To(int32(n))
	}
	for _, f := range []struct {
		name string
		of   *intstr.IntOrString
	}{{WantedMaxUnavailable, &saved.MaxUnavailable}, {WantedMaxSurge, &saved.MaxSurge}} {
		v, ok := annotations[f.name]
		if !ok {
			continue
		}
		if _, err := ParseQuantity(v); err != nil {
			return saved, fmt.Errorf("%s: %w", f.name, err)
		}
		*f.of = intstr.Parse(v)
	}
	return saved, nil
}
