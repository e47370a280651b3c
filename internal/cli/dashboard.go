// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/dashboard"
)

const dashboardAbout = `Serve a web page with running releases, as they change: states, batches, groups, traffic, capacity, deadlines and histories.

It prints the page's URL, and ends with Ctrl-C or SIGTERM, with exit code 0. No request changes anything. The page shows what
your own permissions allow, so treat the URL as a secret: its path is random, and changes with each start.`

type dashboardFlags struct {
	session.Scope

	listen string
}

func newDashboardCommand(o *connect.Options) *cobra.Command {
	var f dashboardFlags
	cmd := &cobra.Command{
		Use:     "dashboard",
		Short:   "Serve a read-only web page with running releases",
		Long:    dashboardAbout,
		Example: "  lockstep dashboard\n  lockstep dashboard -A --listen 127.0.0.1:8080",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd, o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:0", "host:port of the page, on loopback; port 0 is any free port")
	f.Add(flags)
	return cmd
}

func (f *dashboardFlags) run(cmd *cobra.Command, o *connect.Options) error {
	namespace, err := f.Namespace(o)
	if err != nil {
		return err
	}
	address, err := f.address()
	if err != nil {
		return err
	}
	var config net.ListenConfig
	listener, err := config.Listen(cmd.Context(), "tcp", address.String())
	if err != nil {
		return fmt.Errorf("--listen %s: %w", f.listen, err)
	}
	defer func() { _ = listener.Close() }()
	link, err := f.Connect(cmd, o, namespace, "", o.Stderr)
	if err != nil {
		return err
	}
	page := dashboard.New(link.Client, namespace, session.Shorten)
	fmt.Fprintln(o.Stdout, page.URL(listener.Addr()))
	fmt.Fprintln(o.Stderr, "serving read-only until Ctrl-C; anyone with this URL can see what you can see")
	err = session.Explain(link.Cause(page.Serve(link.Context, listener)), "watch releases", session.HintsFor(cmd, "NAME"))
	return errors.Join(err, link.Close())
}

// address resolves --listen, and refuses what other machines reach: the page and its secret URL would travel unencrypted.
func (f *dashboardFlags) address() (*net.TCPAddr, error) {
	address, err := net.ResolveTCPAddr("tcp", f.listen)
	if err != nil {
		return nil, exit.Usagef("--listen %q: want host:port such as 127.0.0.1:8080: %w", f.listen, err)
	}
	if !address.IP.IsLoopback() {
		return nil, exit.Usagef("--listen %s is no loopback address: other machines would reach the page, unencrypted; "+
			"use 127.0.0.1 and ssh -L", f.listen)
	}
	return address, nil
}
