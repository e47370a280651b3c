// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitops judges the health of LeaderWorkerSets by the files for Argo CD and Flux, with the libraries and settings of their
// controllers.
package gitops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	lua "github.com/yuin/gopher-lua"
	"sigs.k8s.io/yaml"
)

// Judge returns the health of an object and its message.
type Judge func(object map[string]any) (health, message string, err error)

// Values of health. Flux has no Suspended and no message.
const (
	Healthy     = "Healthy"
	Progressing = "Progressing"
	Suspended   = "Suspended"
)

// key is the suffix of Argo CD's settings about LeaderWorkerSets.
const key = "leaderworkerset.x-k8s.io_LeaderWorkerSet"

// ArgoCD returns the judge in a ConfigMap argocd-cm. It runs as in Argo CD v3.1 (util/lua): for at most a second, and without the string
// library unless useOpenLibs is set.
func ArgoCD(path string) (Judge, error) {
	var config struct{ Data map[string]string }
	if err := read(path, "", &config); err != nil {
		return nil, err
	}
	script := config.Data["resource.customizations.health."+key]
	if script == "" {
		return nil, fmt.Errorf("%s has no health of LeaderWorkerSets", path)
	}
	open := config.Data["resource.customizations.useOpenLibs."+key] == "true"
	return func(object map[string]any) (health, message string, err error) {
		l := lua.NewState(lua.Options{SkipOpenLibs: !open})
		defer l.Close()
		for name, library := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
			if err := l.CallByParam(lua.P{Fn: l.NewFunction(library), Protect: true}, lua.LString(name)); err != nil {
				return "", "", err
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		l.SetContext(ctx)
		l.SetGlobal("obj", value(l, object))
		if err := l.DoString(script); err != nil {
			return "", "", err
		}
		result, ok := l.Get(-1).(*lua.LTable)
		if !ok {
			return "", "", fmt.Errorf("the script returns %s, want a table", l.Get(-1).Type())
		}
		return result.RawGetString("status").String(), result.RawGetString("message").String(), nil
	}, nil
}

// value returns a decoded JSON value as Lua sees it.
func value(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case []any:
		list := l.NewTable()
		for _, item := range v {
			list.Append(value(l, item))
		}
		return list
	case map[string]any:
		table := l.NewTable()
		for name, item := range v {
			table.RawSetString(name, value(l, item))
		}
		return table
	default:
		return lua.LNil
	}
}

// Flux returns the judge in a manifest with a Kustomization. It runs as in fluxcd/pkg/runtime/cel: an expression is parsed only, and an
// older observedGeneration is in progress whatever the expressions say.
func Flux(path string) (Judge, error) {
	var kustomization struct {
		Spec struct {
			HealthCheckExprs []struct{ APIVersion, Kind, Current, InProgress, Failed string }
		}
	}
	if err := read(path, "kind: Kustomization", &kustomization); err != nil {
		return nil, err
	}
	checks := kustomization.Spec.HealthCheckExprs
	if len(checks) != 1 || checks[0].APIVersion != "leaderworkerset.x-k8s.io/v1" || checks[0].Kind != "LeaderWorkerSet" ||
		checks[0].InProgress+checks[0].Failed != "" {
		return nil, fmt.Errorf("%s: want one health check, of LeaderWorkerSets, with the expression current only: %+v", path, checks)
	}
	env, err := cel.NewEnv(cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true), cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true), cel.OptionalTypes(), ext.Strings(), ext.Sets(), ext.Encoders())
	if err != nil {
		return nil, err
	}
	parsed, issues := env.Parse(checks[0].Current)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	program, err := env.Program(parsed, cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, err
	}
	return func(object map[string]any) (health, message string, err error) {
		result, _, err := program.Eval(object)
		switch {
		case err != nil:
			return "", "", err
		case result.Value() == true:
			return Healthy, "", nil
		case result.Value() == false:
			return Progressing, "", nil
		default:
			return "", "", fmt.Errorf("the expression is %v, want a bool", result)
		}
	}, nil
}

// read decodes the document of a file that contains some text.
func read(path, with string, into any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for document := range strings.SplitSeq(string(raw), "\n---\n") {
		if strings.Contains(document, with) {
			return yaml.Unmarshal([]byte(document), into)
		}
	}
	return errors.New(path + " has no document with " + with)
}
