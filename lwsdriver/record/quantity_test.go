// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseQuantity(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		in     string
		want   Quantity
		bad    bool
	}{
		{name: "Count", reason: "A plain number counts groups.", in: "3", want: Quantity{value: 3}},
		{name: "Zero", reason: "A batch of no groups is a valid first step.", in: "0", want: Quantity{}},
		{name: "LeadingZero", reason: "YAML authors write 05; it means 5.", in: "05", want: Quantity{value: 5}},
		{name: "Percent", reason: "A percent sign makes it a share.", in: "25%", want: Quantity{25, true}},
		{name: "ZeroPercent", reason: "0 % is the lower bound.", in: "0%", want: Quantity{0, true}},
		{name: "HundredPercent", reason: "100 % is the upper bound.", in: "100%", want: Quantity{100, true}},
		{name: "LargestCount", reason: "Counts end where LWS' own do.", in: "2147483647", want: Quantity{value: maxCount}},
		{name: "Empty", reason: "Nothing was requested.", in: "", bad: true},
		{name: "OnlyPercentSign", reason: "A share needs a number.", in: "%", bad: true},
		{name: "Negative", reason: "A number of groups is not negative.", in: "-1", bad: true},
		{name: "PlusSign", reason: "A sign hints at a change, but targets are absolute.", in: "+1", bad: true},
		{name: "Fraction", reason: "Groups are whole.", in: "1.5", bad: true},
		{name: "FractionOfPercent", reason: "Shares are whole percents.", in: "12.5%", bad: true},
		{name: "OverHundredPercent", reason: "At most 100 % is valid.", in: "101%", bad: true},
		{name: "Word", reason: "Not a number.", in: "abc", bad: true},
		{name: "LeadingSpace", reason: "Spaces are a templating accident.", in: " 5", bad: true},
		{name: "TrailingSpace", reason: "Spaces are a templating accident.", in: "5 ", bad: true},
		{name: "InnerSpace", reason: "A percentage is one word.", in: "5 %", bad: true},
		{name: "TwoPercentSigns", reason: "One is enough.", in: "5%%", bad: true},
		{name: "Hex", reason: "Counts are decimal.", in: "0x10", bad: true},
		{name: "Exponent", reason: "Counts are decimal.", in: "1e3", bad: true},
		{name: "OtherDigits", reason: "Only ASCII digits are digits here.", in: "٣", bad: true},
		{name: "OneTooLarge", reason: "More than LWS can hold.", in: "2147483648", bad: true},
		{name: "Huge", reason: "More than an int holds must not wrap around.", in: "99999999999999999999999", bad: true},
		{name: "HugePercent", reason: "More than an int holds must not wrap around.", in: "99999999999999999999999%", bad: true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseQuantity(tc.in)
			if (err != nil) != tc.bad {
				t.Fatalf("%s\nParseQuantity(%q) error = %v, want one: %t", tc.reason, tc.in, err, tc.bad)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(Quantity{})); diff != "" {
				t.Errorf("%s\nParseQuantity(%q): -want, +got:\n%s", tc.reason, tc.in, diff)
			}
		})
	}
}

func TestQuantityOf(t *testing.T) {
	type rounded struct{ Up, Down int }
	tests := []struct {
		name   string
		reason string
		in     string
		total  int
		want   rounded
	}{
		{"QuarterOfThree", "A first batch of 25 % of 3 must reach a group; a threshold must not.", "25%", 3, rounded{1, 0}},
		{"QuarterOfFour", "Nothing to round.", "25%", 4, rounded{1, 1}},
		{"ThirdOfTen", "3.3 groups.", "33%", 10, rounded{4, 3}},
		{"OnePercentOfThousandOne", "10.01 groups.", "1%", 1001, rounded{11, 10}},
		{"AlmostAll", "99 % of one group is that group.", "99%", 1, rounded{1, 0}},
		{"All", "100 % is all.", "100%", 7, rounded{7, 7}},
		{"None", "0 % is none, rounded up too.", "0%", 7, rounded{0, 0}},
		{"OfNothing", "A share of no groups is none.", "50%", 0, rounded{0, 0}},
		{"OfNegative", "An invalid total counts as 0.", "50%", -4, rounded{0, 0}},
		{"Count", "Counts are not rounded.", "3", 4, rounded{3, 3}},
		{"CountAboveTotal", "A count above the total means all of them.", "9", 4, rounded{4, 4}},
		{"CountOfNegative", "An invalid total counts as 0.", "9", -1, rounded{0, 0}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			q, err := ParseQuantity(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			got := rounded{q.Up(tc.total), q.Down(tc.total)}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\n%s of %d: -want, +got:\n%s", tc.reason, tc.in, tc.total, diff)
			}
		})
	}
}
