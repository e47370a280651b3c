// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

func rolling(partition int32, unavailable, surge string) lws.RollingUpdateConfiguration {
	return lws.RollingUpdateConfiguration{
		Partition: ptr.To(partition), MaxUnavailable: intstr.Parse(unavailable), MaxSurge: intstr.Parse(surge),
	}
}

func TestHold(t *testing.T) {
	h := Hold()
	assert.True(t, *h.Partition >= 100_000 && h.MaxSurge == intstr.FromInt32(0), "%+v lets LWS create groups at the new revision", h)
	assert.Equal(t, intstr.FromInt32(1), h.MaxUnavailable, "%+v: LWS refuses maxUnavailable 0 beside maxSurge 0, and a percentage may round to 0", h)
	*h.Partition = 0
	assert.NotZero(t, *Hold().Partition, "holds share their partition")
}

func TestNative(t *testing.T) {
	saved := rolling(3, "25%", "1")
	assert.Empty(t, cmp.Diff(rolling(0, "25%", "1"), Native(saved)), "-want, +got")
	assert.Equal(t, int32(3), *saved.Partition, "the saved configuration was changed in place")
}

func TestSameRolling(t *testing.T) {
	unset := rolling(0, "1", "0")
	unset.Partition = nil
	tests := []struct {
		name   string
		reason string
		a, b   lws.RollingUpdateConfiguration
		want   bool
	}{
		{"Equal", "Pointers are compared by what they point to.", rolling(2, "1", "0"), rolling(2, "1", "0"), true},
		{"UnsetPartition", "LWS defaults the partition to 0.", unset, rolling(0, "1", "0"), true},
		{"Partition", "Any field counts.", rolling(1, "1", "0"), rolling(2, "1", "0"), false},
		{"MaxUnavailable", "Any field counts.", rolling(1, "1", "0"), rolling(1, "2", "0"), false},
		{"MaxSurge", "Any field counts.", rolling(1, "1", "0"), rolling(1, "1", "1"), false},
		{"Percent", "A percentage is not the count it happens to be today.", rolling(1, "1", "0"), rolling(1, "1%", "0"), false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			assert.Equal(t, tc.want, SameRolling(tc.a, tc.b), tc.reason)
			assert.Equal(t, tc.want, SameRolling(tc.b, tc.a), "%s\nthe other way round", tc.reason)
		})
	}
}

func TestAbsorb(t *testing.T) {
	saved := rolling(0, "0", "25%")
	set := func(partition int32, unavailable, surge string) lws.RollingUpdateConfiguration {
		return rolling(partition, unavailable, surge)
	}
	tests := []struct {
		name   string
		reason string
		found  lws.RollingUpdateConfiguration
		want   lws.RollingUpdateConfiguration
	}{
		{"AsSet", "A field that the driver set is not the user's.", Hold(), saved},
		{"WholeManifest", "The user applied a manifest again: all of it is the user's.", set(2, "3", "1"), set(2, "3", "1")},
		{"SameManifest", "Applying what was saved already changes nothing.", saved, saved},
		{"OnlyPartition", "The other fields are the hold's, not the user's.", set(0, "1", "0"), saved},
		{"OnlyMaxUnavailable", "A new pace for the next promotion.", set(holdPartition, "2", "0"), set(0, "2", "25%")},
		{"OnlyMaxSurge", "A new pace for the next promotion.", set(holdPartition, "1", "3"), set(0, "0", "3")},
		{"Removed", "A partition that the user removed is not restored.",
			lws.RollingUpdateConfiguration{MaxUnavailable: intstr.FromInt32(1)},
			lws.RollingUpdateConfiguration{MaxUnavailable: saved.MaxUnavailable, MaxSurge: saved.MaxSurge}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			assert.Empty(t, cmp.Diff(tc.want, Absorb(saved, Hold(), tc.found)), "%s\n-want, +got", tc.reason)
		})
	}
	t.Run("Twice", func(t *testing.T) {
		once := Absorb(saved, Hold(), set(2, "3", "1"))
		assert.Empty(t, cmp.Diff(once, Absorb(once, Hold(), set(2, "3", "1"))), "Absorbing the same edit again changes nothing.\n-want, +got")
	})
}

func TestWanted(t *testing.T) {
	saved := rolling(3, "25%", "1")
	tests := []struct {
		name   string
		reason string
		notes  map[string]string
		want   lws.RollingUpdateConfiguration
		fails  bool
	}{
		{"None", "Without annotations the saved values stay.", map[string]string{"a": "b"}, saved, false},
		{
			"Whole", "A manifest was applied again.",
			map[string]string{WantedPartition: "0", WantedMaxUnavailable: "2", WantedMaxSurge: "50%"}, rolling(0, "2", "50%"), false,
		},
		{"One", "The other fields were not requested.", map[string]string{WantedMaxSurge: "0"}, rolling(3, "25%", "0"), false},
		{"NoGroups", "The annotation was edited.", map[string]string{WantedPartition: "-1"}, saved, true},
		{"TooMany", "LWS has 32 bits for it.", map[string]string{WantedPartition: "2147483648"}, saved, true},
		{"NoQuantity", "The annotation was edited.", map[string]string{WantedMaxUnavailable: "many"}, saved, true},
		{"Empty", "The annotation was edited.", map[string]string{WantedMaxSurge: ""}, saved, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Wanted(saved, tc.notes)
			assert.Equal(t, tc.fails, err != nil, "%s\nerror %v", tc.reason, err)
			diff := cmp.Diff(tc.want, got)
			assert.False(t, err == nil && diff != "", "%s\n-want, +got:\n%s", tc.reason, diff)
			assert.Equal(t, int32(3), *saved.Partition, "what was saved is changed in place")
		})
	}
}

// Of two mistakes the same one is named each time: another text at each observation would be another event.
func TestMistakesAreNamedInOrder(t *testing.T) {
	for range 50 {
		_, wanted := Wanted(rolling(0, "1", "1"), map[string]string{WantedMaxUnavailable: "many", WantedMaxSurge: "few"})
		checked := checkRolling(rolling(0, "many", "few"))
		require.True(t, strings.Contains(fmt.Sprint(wanted), "many") && strings.Contains(fmt.Sprint(checked), "many"),
			"annotations: %v; spec: %v", wanted, checked)
	}
}
