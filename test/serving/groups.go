// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/test/podserver"
)

// ReadyGroups returns a function that counts the complete groups of the namespace whose pods are all ready and not terminating. It
// reads a cache of the pods, which lags by milliseconds.
func (e *Env) ReadyGroups() func() int {
	e.T.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(e.Kube, 0, informers.WithNamespace(e.Namespace))
	pods := factory.Core().V1().Pods().Informer()
	factory.StartWithContext(e.T.Context())
	require.True(e.T, cache.WaitForCacheSync(e.T.Context().Done(), pods.HasSynced), "the pods can't be watched")
	return func() int { return readyGroups(pods.GetStore().List()) }
}

func readyGroups(pods []any) int {
	type group struct{ name, index string }
	missing := map[group]int{}
	for _, object := range pods {
		pod, _ := object.(*corev1.Pod)
		size, err := strconv.Atoi(pod.Annotations[lws.SizeAnnotationKey])
		if err != nil || pod.DeletionTimestamp != nil || !podserver.Ready(pod) {
			continue
		}
		of := group{pod.Labels[lws.SetNameLabelKey], pod.Labels[lws.GroupIndexLabelKey]}
		if _, known := missing[of]; !known {
			missing[of] = size
		}
		missing[of]--
	}
	complete := 0
	for _, n := range missing {
		if n == 0 {
			complete++
		}
	}
	return complete
}
