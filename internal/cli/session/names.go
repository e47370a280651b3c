// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// completionTimeout bounds how long a shell waits for names.
	completionTimeout = 3 * time.Second
	// maxNames bounds how many names are offered.
	maxNames = 500
)

// Names completes NAME by the LeaderWorkerSets of the namespace. Without a cluster there is nothing to offer.
func Names(o *connect.Options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, err := workloadNames(cmd.Context(), o)
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func workloadNames(ctx context.Context, o *connect.Options) ([]string, error) {
	namespace, err := o.WorkloadNamespace()
	if err != nil {
		return nil, err
	}
	client, err := o.Workloads(&pb.WorkloadRef{Namespace: namespace})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	list, err := client.List(ctx, metav1.ListOptions{Limit: maxNames})
	if err != nil {
		return nil, fmt.Errorf("list LeaderWorkerSets: %w", err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}
