package cluster

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Versions are those of the programs that tests may choose. The zero value of a field means the default.
type Versions struct {
	Kubernetes, LWS, Argo, Kruise, GatewayAPI string
}

// versioned is one component whose version can be chosen.
type versioned struct {
	name string
	// env names the environment variable with the version that tests run on.
	env string
	// known are the versions that have a folder in modules/, the default first.
	known []string
	field func(*Versions) *string
}

var selectable = []versioned{
	{"Kubernetes", "LOCKSTEP_TEST_KUBERNETES", []string{"v1.36.3", "v1.35.4", "v1.34.4"}, func(v *Versions) *string { return &v.Kubernetes }},
	{"LWS", "LOCKSTEP_TEST_LWS", []string{"v0.9.0", "v0.10.0"}, func(v *Versions) *string { return &v.LWS }},
	{"Argo Rollouts", "LOCKSTEP_TEST_ARGO", []string{"v1.10.1", "v1.10.2"}, func(v *Versions) *string { return &v.Argo }},
	{"Kruise Rollouts", "LOCKSTEP_TEST_KRUISE", []string{"v0.6.2", "v0.6.3"}, func(v *Versions) *string { return &v.Kruise }},
	{"Gateway API", "LOCKSTEP_TEST_GATEWAY_API", []string{"v1.6.3", "v1.5.1", "v1.4.1"}, func(v *Versions) *string { return &v.GatewayAPI }},
}

// resolve fills each field that is empty from the environment, else with the default, and completes a version like "1.35". It
// fails for a version that has no module.
func (v Versions) resolve() (Versions, error) {
	for _, s := range selectable {
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

// find returns the known version that equals wanted or begins with it and a dot; the default for "".
func (s versioned) find(wanted string) (string, error) {
	if wanted == "" {
		return s.known[0], nil
	}
	prefix := "v" + strings.TrimPrefix(wanted, "v")
	i := slices.IndexFunc(s.known, func(known string) bool { return known == prefix || strings.HasPrefix(known, prefix+".") })
	if i < 0 {
		return "", fmt.Errorf("%s %s cannot be built: test/cluster/modules has %s (%s chooses one)", s.name, wanted, strings.Join(s.known, ", "), s.env)
	}
	return s.known[i], nil
}

// minor returns the second number of a version: 36 of "v1.36.3".
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return parts[1]
}
