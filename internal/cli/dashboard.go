// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/dashboard"
)

const dashboardAbout = `Serve a web page that shows releases as they run, over time: groups, batches, shares and what is wrong, with each
workload's history and template diff.

--link adds a page of your own about each workload: {namespace}, {name} and {reason} in its URL are replaced.

It prints the page's URL, and ends with Ctrl-C or SIGTERM, with exit code 0. No request changes anything. The page shows what
your own permissions allow, so treat the URL as a secret: its path is random, and changes with each start.`

type dashboardFlags struct {
	session.Flags

	listen string
	links  []string
}

// defaultLinks are shown unless --link names others.
var defaultLinks = []string{"Troubleshooting=https://github.com/lockstep-rollouts/lockstep/blob/main/docs/troubleshooting.md"}

func newDashboardCommand(o *connect.Options) *cobra.Command {
	f := dashboardFlags{Flags: session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}}
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a read-only web page with running releases",
		Long:  dashboardAbout,
		Example: "  lockstep dashboard\n  lockstep dashboard -A --listen 127.0.0.1:8080\n" +
			"  lockstep dashboard --link 'Grafana=https://grafana.example.com/d/lockstep?var-namespace={namespace}&var-workload={name}'",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:0", "host:port of the page, on loopback; port 0 is any free port")
	flags.StringArrayVar(&f.links, "link", defaultLinks, "TITLE=URL of a board or runbook; can be repeated")
	f.AddAll(flags)
	f.Dial.Add(flags)
	return cmd
}

func (f *dashboardFlags) run(cmd *cobra.Command, o *connect.Options) error {
	address, err := f.address()
	if err != nil {
		return err
	}
	shown := dashboard.Options{
		// The page adds the namespace of the workload that it shows.
		Lockstep: session.FlagsOf(cmd, func(flag string) bool { return flag != "namespace" && slices.Contains(session.Reach, flag) }),
		Kubectl:  session.FlagsOf(cmd, func(flag string) bool { return flag == "kubeconfig" || flag == "context" }),
	}
	if shown.Links, err = parseLinks(f.links); err != nil {
		return err
	}
	var config net.ListenConfig
	// A port that is taken is reported before the driver fills its caches.
	listener, err := config.Listen(cmd.Context(), "tcp", address.String())
	if err != nil {
		return fmt.Errorf("--listen %s: %w", f.listen, err)
	}
	defer func() { _ = listener.Close() }()
	return f.Run(cmd, o, nil, func(s *session.Session) error {
		page := dashboard.New(s.Client, s.Ref.GetNamespace(), session.Shorten, shown)
		fmt.Fprintln(o.Stdout, page.URL(listener.Addr()))
		fmt.Fprintln(o.Stderr, "serving read-only until Ctrl-C; anyone with this URL can see what you can see")
		return s.Explain(page.Serve(s.Context, listener), "watch")
	})
}

// parseLinks returns titles and URLs. It refuses URLs that a browser would run.
func parseLinks(all []string) ([][2]string, error) {
	links := make([][2]string, 0, len(all))
	for _, text := range all {
		title, address, _ := strings.Cut(text, "=")
		// A javascript: URL would run in the page, with the secret of its path.
		if u, err := url.Parse(address); err != nil || title == "" || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return nil, exit.Usagef("--link %q: want TITLE=URL such as Grafana=https://grafana.example.com/d/lockstep?var-workload={name}", text)
		}
		links = append(links, [2]string{title, address})
	}
	return links, nil
}

// address resolves --listen, and refuses what other machines reach: the page and its secret URL would travel unencrypted.
func (f *dashboardFlags) address() (*net.TCPAddr, error) {
	address, err := net.ResolveTCPAddr("tcp", f.listen)
	if err != nil {
		return nil, exit.Usagef("--listen %q: want host:port such as 127.0.0.1:8080: %w", f.listen, err)
	}
	// The secret protects from users of this machine. Beyond it, the path would be readable on the network.
	if !address.IP.IsLoopback() {
		return nil, exit.Usagef("--listen %s is no loopback address: other machines would reach the page, unencrypted; "+
			"use 127.0.0.1 and ssh -L", f.listen)
	}
	return address, nil
}
