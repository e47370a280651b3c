// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
)

// whoamiTimeout bounds the question. Without an answer the first calls have no user.
const whoamiTimeout = 2 * time.Second

// Whoami returns a source of the user that the API server knows the flags' kubeconfig as: that of calls to a driver inside this
// process. It asks once, at the first call.
func (o *Options) Whoami() func(context.Context) user.Info {
	var mu sync.Mutex
	var known user.Info
	return func(ctx context.Context) user.Info {
		mu.Lock()
		defer mu.Unlock()
		if known == nil {
			ctx, cancel := context.WithTimeout(ctx, whoamiTimeout)
			defer cancel()
			known = o.whoami(ctx)
		}
		return known
	}
}

// whoami returns nil if the API server does not answer.
func (o *Options) whoami(ctx context.Context) user.Info {
	config, err := o.RESTConfig()
	if err != nil {
		return nil
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil
	}
	answer, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil
	}
	return &user.DefaultInfo{Name: answer.Status.UserInfo.Username}
}
