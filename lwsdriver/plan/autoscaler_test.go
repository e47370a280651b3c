// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
)

func parseAutoscaler(l line) Autoscaler {
	kind, name, _ := strings.Cut(l.name, "/")
	scales, held := l.attrs["scales"], autoscaler.Hold(l.attrs["held"])
	if l.has("held") && held == "" {
		held = autoscaler.HoldAll
	}
	return Autoscaler{
		Kind: kind, Name: name, Targets: !l.has("elsewhere") && !l.has("transferred"), Passed: l.has("transferred"),
		Directions: autoscaler.Directions{Up: l.has("scales") && scales != "down", Down: l.has("scales") && scales != "up"}, ToZero: l.has("to-zero"), Held: held, Max: l.number("max", 0),
		Limited: l.has("limited"),
		Lingers: l.attrs["lingers"], Unreadable: l.attrs["unreadable"],
	}
}
