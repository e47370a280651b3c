// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

func (r *report) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func (r *report) writeText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) }
	line("machine: %s", r.Machine)
	r.startText(line)
	r.releaseText(line)
	r.requestText(line)
	r.scaleText(line)
	r.stormText(line)
	r.growthText(line)
	r.fleetText(line)
	r.hostText(line)
	if len(r.Aims) > 0 {
		line("\nAIM\tWANTED\tMEASURED\t")
		for _, a := range r.Aims {
			line("%s\t%s\t%s\t%s", a.What, a.Aim, a.Figure, map[bool]string{true: "met", false: "MISSED"}[a.Met])
		}
	}
	return t.Flush()
}

type printer func(format string, args ...any)

func (r *report) startText(line printer) {
	if r.Start == nil {
		return
	}
	line("\nSTART of `lockstep serve`, %d times\tmedian\tmin\tmax", r.Start.Starts)
	line("exec until health answers\t%s", r.Start.Answers.millis())
	line("exec until SERVING (caches filled)\t%s", r.Start.Serves.millis())
}

func (r *report) releaseText(line printer) {
	if len(r.Releases) == 0 {
		return
	}
	first := r.Releases[0]
	row := func(name string, of func(releaseFigures) string) {
		cells := append(make([]string, 0, 1+len(r.Releases)), name)
		for _, f := range r.Releases {
			cells = append(cells, of(f))
		}
		line("%s", strings.Join(cells, "\t"))
	}
	row(fmt.Sprintf("\nRELEASE of %d groups of %d, medians", first.Groups, first.Size), func(f releaseFigures) string {
		if f.Startup == 0 {
			return fmt.Sprintf("instant pods, %d times", f.Reps)
		}
		return fmt.Sprintf("%g s start-up, %d times", f.Startup, f.Reps)
	})
	row("canary "+strings.Join(first.Batches, " ")+", promoted", func(f releaseFigures) string { return f.Canary.secs() })
	row("native rolling update", func(f releaseFigures) string { return f.Native.secs() })
	row("ratio", func(f releaseFigures) string { return fmt.Sprintf("%.2fx", f.Ratio) })
	row("canary above its critical path", func(f releaseFigures) string { return above(f.Canary.Median, f.CanaryCritical) })
	row("native above its critical path", func(f releaseFigures) string { return above(f.Native.Median, f.NativeCritical) })
	row("LWS itself adds one group", func(f releaseFigures) string { return f.OneMore.secs() })
	row("LWS itself: a group per batch, then native", func(f releaseFigures) string {
		return fmt.Sprintf("%s, canary is %.2fx", secs(f.steps()), f.Canary.Median/f.steps())
	})
	row("canary: image change until HOLDING", func(f releaseFigures) string { return secs(f.Prepare) })
	for i, batch := range first.Batches {
		row(fmt.Sprintf("canary: batch %d (%s)", i, batch), func(f releaseFigures) string { return secs(f.Batch[i]) })
	}
	row("canary: Finalize until all groups rolled", func(f releaseFigures) string { return secs(f.Rolling) })
	row("canary: from then until its pods are gone", func(f releaseFigures) string { return secs(f.PodsGone) })
	row("canary: from then until COMPLETED", func(f releaseFigures) string { return secs(f.CleanUp) })
}

func (r *report) requestText(line printer) {
	q := r.Requests
	if q == nil {
		return
	}
	line("\nREQUESTS of the driver, %d releases\tper release", q.Releases)
	for _, k := range q.ByKind {
		line("%s\t%.1f", k.Request, k.PerRelease)
	}
	line("writes, without events\t%.1f (most: %d)", q.Writes, q.MaxWrites)
	line("GET and LIST since it served\t%d in all", q.Reads)
	for _, read := range q.ReadsOf[:min(len(q.ReadsOf), 5)] {
		line("  %s", read)
	}
	line("any request in %.0f idle seconds\t%d in all", q.IdleSeconds, q.Idle)
}

func (r *report) scaleText(line printer) {
	s := r.Scale
	if s == nil {
		return
	}
	line("\nSCALE: %d groups, %d pods", s.Groups, s.Pods)
	line("exec until SERVING\t%s", secs(s.Synced))
	line("live heap\t%.0f MB (%.0f MB without them: about %.1f kB per pod)", s.LiveMB, s.LiveSmallMB, s.BytesPerPod/1000)
	line("resident memory\t%.0f MB (%.0f MB not the binary's file; peak %.0f MB)", s.ResidentMB, s.PrivateMB, s.PeakMB)
	line("CalculateBatchContext in the driver\tp50\tp99\tCPU p50\tCPU p99")
	for _, c := range s.Inside {
		line("%s\t%.2f ms\t%.2f ms\t%.2f ms\t%.2f ms", c, c.P50, c.P99, c.CPU, c.CPUP99)
	}
	line("CalculateBatchContext over the socket\tp50\tp99\tCPU of the process, mean")
	for _, c := range s.Calls {
		line("%s\t%.2f ms\t%.2f ms\t%.2f ms", c, c.P50, c.P99, c.CPU)
	}
}

func (r *report) stormText(line printer) {
	f := r.Storm
	if f == nil {
		return
	}
	line("\nSTORM: %d LeaderWorkerSets of %d groups of %d, released in place, in one batch\tnatively\tby the driver", f.Workloads, groups, groupSize)
	line("%d at once\t%s\t%s (%.2fx)", f.Releasing, secs(f.Native), secs(f.Driver), f.Driver/f.Native)
	line("%d at once, at most %d groups in flight, driver killed in the middle\t\t%s (%.2fx of %d times the first)",
		f.Releasing*f.Times, f.Releasing, secs(f.Limited), f.Limited/f.Native/float64(f.Times), f.Times)
	for _, n := range f.Natively {
		if n.Settled {
			line("%d at once\t%s\t", n.AtOnce, secs(n.Seconds))
		} else {
			line("%d at once\tnot settled after %s\t", n.AtOnce, secs(n.Seconds))
		}
	}
	line("one of %d groups of %d, maxUnavailable %d\t%s\t%s (%.2fx)", largeGroups, largeSize, largeUnavailable,
		secs(f.LargeNative), secs(f.LargeDriver), f.LargeDriver/f.LargeNative)
	line("created / adopted %d\t%s\t%s", f.Releasing*f.Times, secs(f.Created), secs(f.Adopted))
	line("driver, for %d releases at once\t%d requests\t%s of CPU, peak %.0f MB", f.Releasing, f.Requests, secs(f.CPU), f.PeakMB)
}

func (r *report) growthText(line printer) {
	if len(r.Growth) == 0 {
		return
	}
	line("\nGROWTH of a fleet at rest\tpods\texec until SERVING\tlive heap\tCPU per change of a pod")
	for _, f := range r.Growth {
		line("%d LeaderWorkerSets\t%d\t%s\t%.0f MB\t%.3f ms", f.Workloads, f.Pods, secs(f.Synced), f.LiveMB, f.EventCPU)
	}
}

func (r *report) fleetText(line printer) {
	f := r.Fleet
	if f == nil {
		return
	}
	line("\nFLEET: %d pods of %d LeaderWorkerSets, none adopted", f.Pods, f.Workloads)
	line("exec until SERVING\t%s", secs(f.Synced))
	line("live heap\t%.0f MB", f.LiveMB)
	line("resident memory\t%.0f MB, %.0f MB once all groups were read, %.0f MB with a million groups without pods; peak %.0f MB",
		f.ResidentMB, f.ObservedMB, f.MillionMB, f.PeakMB)
}

func (r *report) hostText(line printer) {
	if len(r.Hosts) == 0 {
		return
	}
	line("\nHOSTS: %d steps, %d groups of %d or %d pods, %d times\ttook\tof the first\twrites\treads\tevents",
		len(batches), groups, groupSize, groups, r.Hosts[0].Reps)
	for _, f := range r.Hosts {
		line("%s\t%s\t%.2fx\t%.0f\t%.0f\t%.0f", f.Way, f.Took.secs(), f.Took.Median/r.Hosts[0].Took.Median, f.Writes, f.Reads, f.Events)
	}
}

func secs(s float64) string { return fmt.Sprintf("%.2f s", s) }

func (s spread) secs() string { return fmt.Sprintf("%.2f s (%.2f-%.2f)", s.Median, s.Min, s.Max) }

func (s spread) millis() string {
	return fmt.Sprintf("%.0f ms\t%.0f ms\t%.0f ms", 1000*s.Median, 1000*s.Min, 1000*s.Max)
}

func above(total, critical float64) string {
	return fmt.Sprintf("%.2f s + %.2f s", critical, total-critical)
}
