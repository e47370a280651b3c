// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// What Up, Down and String are for, FuzzQuantityOf judges for any text and number.
func TestParseQuantity(t *testing.T) {
	for in, want := range map[string]Quantity{
		"3": {value: 3}, "0": {}, "05": {value: 5}, "25%": {25, true}, "0%": {0, true}, "100%": {100, true}, "2147483647": {value: maxCount},
	} {
		got, err := ParseQuantity(in)
		assert.True(t, err == nil && got == want, "ParseQuantity(%q) = %+v, %v; want %+v", in, got, err, want)
	}
	for _, in := range []string{
		// Signs hint at a change, and targets are absolute. Spaces and empty texts are accidents of templates.
		"", "%", "-1", "+1", " 5", "5 ", "5 %", "5%%", "1.5", "12.5%", "101%", "abc", "0x10", "1e3", "٣",
		// More than LWS, or an int, holds must not wrap around.
		"2147483648", "99999999999999999999999", "99999999999999999999999%",
	} {
		got, err := ParseQuantity(in)
		assert.True(t, err != nil && got == (Quantity{}), "ParseQuantity(%q) = %+v, %v", in, got, err)
	}
}

// A first batch of 25 % of 3 must reach a group, and a threshold of 25 % must not.
func TestQuantityOf(t *testing.T) {
	for _, tt := range []struct {
		in              string
		total, up, down int
	}{
		{"25%", 3, 1, 0}, {"25%", 4, 1, 1}, {"33%", 10, 4, 3}, {"1%", 1001, 11, 10}, {"99%", 1, 1, 0}, {"50%", 0, 0, 0}, {"50%", -4, 0, 0},
		{"3", 4, 3, 3}, {"9", 4, 4, 4}, {"9", -1, 0, 0},
	} {
		if q, err := ParseQuantity(tt.in); err != nil || q.Up(tt.total) != tt.up || q.Down(tt.total) != tt.down {
			t.Errorf("%s of %d: up %d, down %d, %v; want %d and %d", tt.in, tt.total, q.Up(tt.total), q.Down(tt.total), err, tt.up, tt.down)
		}
	}
}
