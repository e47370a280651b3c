// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	if *h.Partition < 100_000 || h.MaxSurge != intstr.FromInt32(0) {
		t.Errorf("%+v lets LWS create groups at the new revision", h)
	}
	if h.MaxUnavailable != intstr.FromInt32(1) {
		t.Errorf("%+v: LWS refuses maxUnavailable 0 beside maxSurge 0, and a percentage may round to 0", h)
	}
	*h.Partition = 0
	if *Hold().Partition == 0 {
		t.Error("holds share their partition")
	}
}

func TestNative(t *testing.T) {
	saved := rolling(3, "25%", "1")
	if diff := cmp.Diff(rolling(0, "25%", "1"), Native(saved)); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	if *saved.Partition != 3 {
		t.Error("the saved configuration was changed in place")
	}
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
			if got := SameRolling(tc.a, tc.b); got != tc.want {
				t.Errorf("%s\ngot %t", tc.reason, got)
			}
			if got := SameRolling(tc.b, tc.a); got != tc.want {
				t.Errorf("%s\nthe other way round: got %t", tc.reason, got)
			}
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
			if diff := cmp.Diff(tc.want, Absorb(saved, Hold(), tc.found)); diff != "" {
				t.Errorf("%s\n-want, +got:\n%s", tc.reason, diff)
			}
		})
	}
	t.Run("Twice", func(t *testing.T) {
		once := Absorb(saved, Hold(), set(2, "3", "1"))
		if diff := cmp.Diff(once, Absorb(once, Hold(), set(2, "3", "1"))); diff != "" {
			t.Errorf("Absorbing the same edit again changes nothing.\n-want, +got:\n%s", diff)
		}
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
			if (err != nil) != tc.fails {
				t.Errorf("%s\nerror %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got); err == nil && diff != "" {
				t.Errorf("%s\n-want, +got:\n%s", tc.reason, diff)
			}
			if *saved.Partition != 3 {
				t.Error("what was saved is changed in place")
			}
		})
	}
}

// Of two mistakes the same one is named each time: another text at each observation would be another event.
func TestMistakesAreNamedInOrder(t *testing.T) {
	for range 50 {
		_, wanted := Wanted(rolling(0, "1", "1"), map[string]string{WantedMaxUnavailable: "many", WantedMaxSurge: "few"})
		checked := checkRolling(rolling(0, "many", "few"))
		if !strings.Contains(fmt.Sprint(wanted), "many") || !strings.Contains(fmt.Sprint(checked), "many") {
			t.Fatalf("annotations: %v; spec: %v", wanted, checked)
		}
	}
}
