// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// refresh is the interval of watch.
const refresh = 500 * time.Millisecond

// rollouts are a host's own objects, one of which the demo watches.
type rollouts struct {
	resource schema.GroupVersionResource
	// status returns the object's status as text.
	status func(context.Context, *unstructured.Unstructured) (string, error)
	// idle reports whether the host has observed the object's generation and has nothing to do.
	idle func(*unstructured.Unstructured) bool
}

// follow shows the release until the host is idle again.
func (s *stage) follow(ctx context.Context, host rollouts) error {
	started := false
	return s.watch(ctx, host, func(r *unstructured.Unstructured) bool {
		started = started || !host.idle(r)
		return started && host.idle(r)
	})
}

// watch shows the host's status beside the groups, at each change, until done.
func (s *stage) watch(ctx context.Context, host rollouts, done func(*unstructured.Unstructured) bool) error {
	client, err := dynamic.NewForConfig(s.cluster.RESTConfig())
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*patience)
	defer cancel()
	for last, lines := "", 0; ; {
		r, err := client.Resource(host.resource).Namespace(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get Rollout: %w", err)
		}
		text, err := host.status(ctx, r)
		if err != nil {
			return err
		}
		picture := beside(text, s.groups(ctx))
		if now := ages.ReplaceAllString(picture, ""); now != last {
			if last != "" && s.live() {
				fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", lines)
			}
			fmt.Fprintln(s.out, picture)
			last, lines = now, strings.Count(picture, "\n")+1
		}
		if done(r) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(refresh):
		}
	}
}

// ages are ignored in comparisons.
var ages = regexp.MustCompile(`\b\d+(s|m|m\d+s)\b`)

// beside returns two texts side by side.
func beside(left, right string) string {
	columns := [2][]string{strings.Split(strings.TrimSpace(left), "\n"), strings.Split(right, "\n")}
	width := 0
	for _, line := range columns[0] {
		width = max(width, utf8.RuneCountInString(line))
	}
	var b strings.Builder
	for i := range max(len(columns[0]), len(columns[1])) {
		var cells [2]string
		for side, lines := range columns {
			if i < len(lines) {
				cells[side] = lines[i]
			}
		}
		b.WriteString(strings.TrimRight(fmt.Sprintf("%-*s     %s", width, cells[0], cells[1]), " ") + "\n")
	}
	return b.String()
}

// groups returns the pods of the workload and of its canary.
func (s *stage) groups(ctx context.Context) string {
	list, err := s.core.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: lws.SetNameLabelKey})
	if err != nil {
		return err.Error()
	}
	lines := []string{"POD", ""}
	for i := range list.Items {
		p := &list.Items[i]
		_, tag, _ := strings.Cut(p.Spec.Containers[0].Image, ":")
		lines = append(lines, fmt.Sprintf("%-22s %-12s %s", p.Name, tag, phase(p)))
	}
	return strings.Join(lines, "\n")
}

// live reports whether the output is a terminal, which can be redrawn.
func (s *stage) live() bool {
	file, ok := s.out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (s *stage) result(ctx context.Context) error {
	fmt.Fprint(s.out, s.pods(ctx))
	return s.alone(ctx)
}
