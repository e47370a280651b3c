// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report has all measurements of one run. Times are in seconds, except where a name says otherwise.
type report struct {
	Machine  string           `json:"machine"`
	Start    *startFigures    `json:"start,omitempty"`
	Releases []releaseFigures `json:"releases,omitempty"`
	Requests *requestFigures  `json:"requests,omitempty"`
	Scale    *scaleFigures    `json:"scale,omitempty"`
	Fleet    *fleetFigures    `json:"fleet,omitempty"`
	Storm    *stormFigures    `json:"storm,omitempty"`
	Growth   []growthFigures  `json:"growth,omitempty"`
	Hosts    []hostFigures    `json:"hosts,omitempty"`
	Aims     []aim            `json:"aims,omitempty"`
}

// spread is a distribution of times.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// startFigures are about the process: from exec until its health check responds, and until it is SERVING.
type startFigures struct {
	Starts  int    `json:"starts"`
	Answers spread `json:"answers"`
	Serves  spread `json:"serves"`
}

// releaseFigures compare a canary with a native rolling update. Phases are medians of their own, so their sum is not
// exactly the total's median.
type releaseFigures struct {
	Startup float64  `json:"startup"`
	Reps    int      `json:"reps"`
	Groups  int      `json:"groups"`
	Size    int      `json:"size"`
	Batches []string `json:"batches"`

	Canary spread  `json:"canary"`
	Native spread  `json:"native"`
	Ratio  float64 `json:"ratio"`
	// OneMore is LWS's own time to add one group to the twin: the cost of a batch without Lockstep.
	OneMore        spread  `json:"oneMore"`
	CanaryCritical float64 `json:"canaryCriticalPath"`
	NativeCritical float64 `json:"nativeCriticalPath"`

	Prepare  float64   `json:"prepare"`
	Batch    []float64 `json:"batch"`
	Rolling  float64   `json:"rolling"`
	CleanUp  float64   `json:"cleanUp"`
	PodsGone float64   `json:"podsGone"`
}

func (f *releaseFigures) fill(canaries []took, natives, oneMore []time.Duration, startup time.Duration) {
	pick := func(of func(took) time.Duration) spread {
		all := make([]time.Duration, 0, len(canaries))
		for _, t := range canaries {
			all = append(all, of(t))
		}
		return spreadOf(all)
	}
	f.Canary, f.Native = pick(func(t took) time.Duration { return t.total }), spreadOf(natives)
	f.OneMore = spreadOf(oneMore)
	f.Ratio = f.Canary.Median / f.Native.Median
	// LWS replaces maxUnavailable groups at a time. A canary's batches are sequential before that.
	f.NativeCritical = seconds(startup) * math.Ceil(groups/float64(maxUnavailable))
	f.CanaryCritical = seconds(startup)*float64(len(batches)) + f.NativeCritical
	f.Prepare = pick(func(t took) time.Duration { return t.prepare }).Median
	for i := range batches {
		f.Batch = append(f.Batch, pick(func(t took) time.Duration { return t.batches[i] }).Median)
	}
	f.Rolling = pick(func(t took) time.Duration { return t.rolling }).Median
	f.CleanUp = pick(func(t took) time.Duration { return t.cleanUp }).Median
	f.PodsGone = pick(func(t took) time.Duration { return t.podsGone }).Median
}

// steps is LWS's own time for the steps of a canary, without the canary's removal.
func (f *releaseFigures) steps() float64 {
	return float64(len(f.Batches))*f.OneMore.Median + f.Native.Median
}

// requestFigures are the requests of the driver's user to the API server.
type requestFigures struct {
	Releases int `json:"releases"`
	// Writes and Events are per release; events do not count as writes.
	Writes    float64 `json:"writes"`
	MaxWrites int     `json:"maxWrites"`
	Events    float64 `json:"events"`
	// Reads are all GET and LIST since the driver served.
	Reads   int          `json:"reads"`
	ReadsOf []string     `json:"readsOf,omitempty"`
	ByKind  []perRelease `json:"byKind"`
	// Idle are all requests in a number of seconds without changes.
	Idle        int     `json:"idle"`
	IdleSeconds float64 `json:"idleSeconds"`
}

type perRelease struct {
	Request    string  `json:"request"`
	PerRelease float64 `json:"perRelease"`
}

// scaleFigures are about one driver with many pods.
type scaleFigures struct {
	Groups int `json:"groups"`
	Pods   int `json:"pods"`
	// Synced is from exec to SERVING.
	Synced float64 `json:"synced"`
	// LiveMB is the heap that the garbage collector found in use; LiveSmallMB the same with few pods. The collector reports
	// whole MB, so BytesPerPod is no more exact.
	LiveMB      float64 `json:"liveMB"`
	LiveSmallMB float64 `json:"liveSmallMB"`
	BytesPerPod float64 `json:"bytesPerPod"`
	// ResidentMB is all memory of the process, of which PrivateMB are not pages of its own binary; PeakMB is the
	// maximum, which occurs while the caches fill.
	ResidentMB float64 `json:"residentMB"`
	PrivateMB  float64 `json:"privateMB"`
	PeakMB     float64 `json:"peakMB"`
	// Inside are calls within a process that holds as many pods, without a socket; Calls are those over the socket.
	Inside []callFigures `json:"inside"`
	Calls  []callFigures `json:"calls"`
}

// callFigures are CalculateBatchContext, in milliseconds. P50 and P99 are on the clock, which a busy machine stretches. CPU is the median inside the driver, and the mean of the whole
// process over the socket, where CPUP99 is not known.
type callFigures struct {
	Groups bool    `json:"includeGroups"`
	Churn  float64 `json:"podChangesPerSecond"`
	P50    float64 `json:"p50ms"`
	P99    float64 `json:"p99ms"`
	CPU    float64 `json:"cpuMs"`
	CPUP99 float64 `json:"cpuP99ms,omitempty"`
}

// hostFigures are about one host's release, from the change of the image until the host reports its end.
type hostFigures struct {
	Way  string `json:"way"`
	Reps int    `json:"reps"`
	Took spread `json:"took"`
	// Writes, Reads and Events are requests per release, until all is at rest; events do not count as writes.
	Writes float64 `json:"writes"`
	Reads  float64 `json:"reads"`
	Events float64 `json:"events"`
}

// aim is a target, and whether this run met it. It has no effect on the result.
type aim struct {
	What   string `json:"what"`
	Aim    string `json:"aim"`
	Figure string `json:"figure"`
	Met    bool   `json:"met"`
}

func (r *report) judge() {
	add := func(met bool, what, want, format string, args ...any) {
		r.Aims = append(r.Aims, aim{what, want, fmt.Sprintf(format, args...), met})
	}
	for _, f := range r.Releases {
		if f.Startup == 0 {
			add(f.Ratio <= 2, "canary beside native, instant pods", "at most 2x", "%.2fx", f.Ratio)
		}
	}
	if q := r.Requests; q != nil {
		add(q.Reads == 0, "GET and LIST after start-up", "0", "%d", q.Reads)
		add(q.MaxWrites <= 12, "writes per 4-batch release, worst", "at most 12", "%d", q.MaxWrites)
	}
	if s := r.Scale; s != nil {
		for _, rows := range []bool{false, true} {
			what := "CalculateBatchContext p99, " + callFigures{Groups: rows}.content()
			inside, socket := worstP99(s.Inside, rows), worstP99(s.Calls, rows)
			add(inside < 1, what+", in the driver", "below 1 ms", "%.2f ms", inside)
			add(socket < 1, what+", over the socket", "below 1 ms", "%.2f ms", socket)
		}
		add(s.LiveMB < 100, fmt.Sprintf("live heap at %d pods", s.Pods), "below 100 MB", "%.0f MB", s.LiveMB)
		add(s.ResidentMB < 100, fmt.Sprintf("resident memory at %d pods", s.Pods), "below 100 MB", "%.0f MB", s.ResidentMB)
	}
	if f := r.Fleet; f != nil {
		add(f.PeakMB < 150, fmt.Sprintf("peak resident memory at %d pods of %d LeaderWorkerSets", f.Pods, f.Workloads), "below 150 MB", "%.0f MB", f.PeakMB)
		add(f.MillionMB-f.ObservedMB < 20, "a LeaderWorkerSet of a million groups without pods", "below 20 MB", "%.0f MB", f.MillionMB-f.ObservedMB)
	}
	if len(r.Hosts) > 0 {
		faster := r.Hosts[0].Took.Median / r.ours().Took.Median
		add(faster >= 5, "lockstep batchrelease (canary) beside stock Kruise and a Deployment", "at least 5x faster", "%.1fx", faster)
	}
	if s := r.Start; s != nil {
		add(s.Answers.Median < 0.150, "exec until health answers, median", "below 150 ms", "%.0f ms", 1000*s.Answers.Median)
	}
}

// ours is Lockstep's own host.
func (r *report) ours() hostFigures {
	return r.Hosts[slices.IndexFunc(r.Hosts, func(f hostFigures) bool { return strings.HasPrefix(f.Way, ownHost+", Canary") })]
}

// worstP99 is the longer of at rest and while pods change.
func worstP99(all []callFigures, rows bool) float64 {
	worst := 0.0
	for _, c := range all {
		if c.Groups == rows {
			worst = max(worst, c.P99)
		}
	}
	return worst
}

func (c callFigures) content() string {
	if c.Groups {
		return "with groups"
	}
	return "counts only"
}

func (c callFigures) String() string {
	if c.Churn == 0 {
		return c.content() + ", at rest"
	}
	return fmt.Sprintf("%s, %.0f pod changes/s", c.content(), c.Churn)
}

func seconds(d time.Duration) float64 { return d.Seconds() }

func spreadOf(all []time.Duration) spread {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return spread{Median: seconds((sorted[(n-1)/2] + sorted[n/2]) / 2), Min: seconds(sorted[0]), Max: seconds(sorted[n-1])}
}

func medianOf(all []int) float64 {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return float64(sorted[(n-1)/2]+sorted[n/2]) / 2
}

func compare(a, b float64, nameA, nameB string) int {
	return cmp.Or(cmp.Compare(a, b), cmp.Compare(nameA, nameB))
}

// machine describes where the figures were measured.
func machine() string {
	model := "unknown CPU"
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	load := "?"
	if raw, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(raw), " ")
	}
	return fmt.Sprintf("%d x %s, load %s at the beginning, %s", runtime.NumCPU(), model, load, runtime.Version())
}
