// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"strings"
	"time"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// StateWord is the state as people write it: "rolling back".
func StateWord(state pb.State) string {
	word := strings.TrimPrefix(state.String(), "STATE_")
	return strings.ToLower(strings.ReplaceAll(word, "_", " "))
}

// StyleWord is the style as the documentation spells it.
func StyleWord(style pb.Style) string {
	switch style {
	case pb.Style_STYLE_CANARY:
		return "Canary"
	case pb.Style_STYLE_BLUE_GREEN:
		return "BlueGreen"
	case pb.Style_STYLE_PARTITION:
		return "Partition"
	default:
		return strings.TrimPrefix(style.String(), "STYLE_")
	}
}

// RoleWord is the group's side.
func RoleWord(role pb.GroupRole) string {
	return strings.ToLower(strings.TrimPrefix(role.String(), "GROUP_ROLE_"))
}

// workload is "namespace/name".
func workload(c *pb.BatchContext) string {
	return c.GetWorkload().GetNamespace() + "/" + c.GetWorkload().GetName()
}

// BatchWord says which batch: "2/3 (50%)". An absolute target is "50%", none is "-".
func BatchWord(c *pb.BatchContext) string {
	switch {
	case c.CurrentBatch != nil:
		return fmt.Sprintf("%d/%d (%s)", c.GetCurrentBatch()+1, c.GetBatches(), c.GetTarget())
	case c.GetTarget() != "":
		return c.GetTarget()
	default:
		return "-"
	}
}

// count is "1 group" or "2 groups".
func count(n int32, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Age is d with the two largest units that matter: "45s", "3m12s", "2h5m", "3d4h". Negative ones, which clocks that
// differ make, are "0s".
func Age(d time.Duration) string {
	seconds := int64(max(d, 0) / time.Second)
	units := []struct {
		name    string
		seconds int64
	}{{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}}
	for i, u := range units {
		if seconds < u.seconds && u.seconds > 1 {
			continue
		}
		text := fmt.Sprintf("%d%s", seconds/u.seconds, u.name)
		if rest := seconds % u.seconds; i+1 < len(units) && rest/units[i+1].seconds > 0 {
			text += fmt.Sprintf("%d%s", rest/units[i+1].seconds, units[i+1].name)
		}
		return text
	}
	return "0s"
}

// OneLine keeps what the cluster wrote from breaking lines and terminals: control characters become spaces.
func OneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s))
}
