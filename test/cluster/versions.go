// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/internal/compatibility"
)

// Versions are the versions of programs that tests may choose. An empty field means the default.
type Versions struct {
	Kubernetes, LWS, Argo, Kruise, GatewayAPI string
}

// selectable is a component whose version tests may choose.
type selectable struct {
	compatibility.Component
	// env is the environment variable with the version.
	env   string
	field func(*Versions) *string
}

var selectables = []selectable{
	{compatibility.Kubernetes, "LOCKSTEP_TEST_KUBERNETES", func(v *Versions) *string { return &v.Kubernetes }},
	{compatibility.LWS, "LOCKSTEP_TEST_LWS", func(v *Versions) *string { return &v.LWS }},
	{compatibility.ArgoRollouts, "LOCKSTEP_TEST_ARGO", func(v *Versions) *string { return &v.Argo }},
	{compatibility.KruiseRollouts, "LOCKSTEP_TEST_KRUISE", func(v *Versions) *string { return &v.Kruise }},
	{compatibility.GatewayAPI, "LOCKSTEP_TEST_GATEWAY_API", func(v *Versions) *string { return &v.GatewayAPI }},
}

// Resolve fills empty fields from the environment or with the default, and completes a version like "1.35". It returns an error for a
// version without a module.
func (v Versions) Resolve() (Versions, error) {
	for _, s := range selectables {
		field := s.field(&v)
		wanted := *field
		if wanted == "" {
			wanted = os.Getenv(s.env)
		}
		found, err := s.find(wanted)
		if err != nil {
			return v, err
		}
		*field = found
	}
	return v, nil
}

// Environment returns the environment variables of the versions that are chosen.
func (v Versions) Environment() []string {
	var env []string
	for _, s := range selectables {
		if version := *s.field(&v); version != "" {
			env = append(env, s.env+"="+version)
		}
	}
	return env
}

// String returns the versions that are chosen, e.g. "Kubernetes v1.35, Gateway API v1.5".
func (v Versions) String() string {
	var chosen []string
	for _, s := range selectables {
		if version := *s.field(&v); version != "" {
			chosen = append(chosen, s.Name+" "+version)
		}
	}
	return strings.Join(chosen, ", ")
}

// find returns the version that equals wanted or starts with it and a dot, or the default for "".
func (s selectable) find(wanted string) (string, error) {
	if wanted == "" {
		return s.Default(), nil
	}
	prefix := "v" + strings.TrimPrefix(wanted, "v")
	i := slices.IndexFunc(s.Versions, func(known string) bool { return known == prefix || strings.HasPrefix(known, prefix+".") })
	if i < 0 {
		return "", fmt.Errorf("unknown version: %s %s: test/cluster/modules has %s (%s chooses one)", s.Name, wanted, strings.Join(s.Versions, ", "), s.env)
	}
	return s.Versions[i], nil
}

// minor returns the second number of a version: 36 of "v1.36.3".
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return parts[1]
}
