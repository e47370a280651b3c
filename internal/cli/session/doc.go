// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package session runs a command about one workload: it connects to a driver, shows progress, and adds to an error how to
// fix it.
//
//	flags := session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}
//	cmd := flags.Command(options, &cobra.Command{Use: "history NAME"}, func(s *session.Session) error {
//		response, err := session.Call(s, "read the history of", s.ListRevisions, &pb.ListRevisionsRequest{Workload: s.Ref})
//		...
//	})
package session
