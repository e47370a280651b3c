// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"strconv"
	"strings"
)

// Quantity is a number of groups: a count, or a percentage of a total. The zero value is 0 groups.
type Quantity struct {
	value   int
	percent bool
}

// maxCount bounds counts; LWS itself allows no more pods.
const maxCount = 1<<31 - 1

// ParseQuantity reads "3" or "25%". Signs, spaces, fractions, percentages over 100 and empty strings are refused.
func ParseQuantity(s string) (Quantity, error) {
	digits, percent := strings.CutSuffix(s, "%")
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return Quantity{}, fmt.Errorf("%q is neither a count of groups such as \"3\" nor a percentage such as \"25%%\"", s)
	}
	value, err := strconv.Atoi(digits)
	if err != nil || value > maxCount {
		return Quantity{}, fmt.Errorf("%q is too large", s)
	}
	if percent && value > 100 {
		return Quantity{}, fmt.Errorf("%q is more than 100%%", s)
	}
	return Quantity{value: value, percent: percent}, nil
}

// Up returns the quantity of total, rounded up and clamped to 0..total: for groups to update, and for surge.
func (q Quantity) Up(total int) int { return q.scaled(total, 99) }

// Down returns the quantity of total, rounded down and clamped to 0..total: for groups that may be unready.
func (q Quantity) Down(total int) int { return q.scaled(total, 0) }

func (q Quantity) scaled(total, round int) int {
	n := q.value
	if q.percent {
		n = (q.value*total + round) / 100
	}
	return min(max(n, 0), max(total, 0))
}

// String returns the form that ParseQuantity reads.
func (q Quantity) String() string {
	if q.percent {
		return strconv.Itoa(q.value) + "%"
	}
	return strconv.Itoa(q.value)
}

// MarshalText returns the form that ParseQuantity reads.
func (q Quantity) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalText reads what MarshalText returned.
func (q *Quantity) UnmarshalText(text []byte) (err error) {
	*q, err = ParseQuantity(string(text))
	return err
}
