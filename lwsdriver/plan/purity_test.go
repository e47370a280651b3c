// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// allowedImports are the imports of a pure planner: none of them reaches a cluster, a clock, a log or another goroutine.
var allowedImports = []string{
	"errors",
	"fmt",
	"iter",
	"math",
	"cmp", "maps", "reflect",
	"slices",
	"sort",
	"strconv",
	"strings",
	"time",
	"google.golang.org/protobuf/proto",
	"k8s.io/api/core/v1",
	"k8s.io/apimachinery/pkg/api/equality",
	"k8s.io/apimachinery/pkg/apis/meta/v1",
	"k8s.io/apimachinery/pkg/types",
	"k8s.io/apimachinery/pkg/util/intstr",
	"k8s.io/utils/ptr",
	"sigs.k8s.io/lws/api/leaderworkerset/v1",
	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler", // as pure as this package
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record",
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr",
	"github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1",
	"github.com/lockstep-rollouts/lockstep/traffic", // as pure as this package
}

// clockless are the functions of package time that only compute.
var clockless = []string{"Duration", "Time", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}

// sources are the package's files without its tests.
func sources(t *testing.T) (*token.FileSet, []*ast.File) {
	t.Helper()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	set, files := token.NewFileSet(), []*ast.File{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, e.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	require.NotEmpty(t, files, "no files")
	return set, files
}

func TestPlanIsPure(t *testing.T) {
	set, files := sources(t)
	for _, file := range files {
		clock := "" // the name under which the file knows package time
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if !slices.Contains(allowedImports, path) {
				t.Errorf("%s imports %s: the planner depends on its arguments only", set.Position(spec.Pos()), path)
			}
			if path == "time" {
				clock = "time"
				if spec.Name != nil {
					clock = spec.Name.Name
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a goroutine", set.Position(n.Pos()))
			case *ast.SelectorExpr:
				pkg, ok := n.X.(*ast.Ident)
				if ok && clock != "" && pkg.Name == clock && !slices.Contains(clockless, n.Sel.Name) {
					t.Errorf("%s uses time.%s: the time is the Observation's", set.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
}

func TestReasons(t *testing.T) {
	camelCase := regexp.MustCompile(`^[A-Z][a-z0-9]+([A-Z][a-z0-9]+)*$`)
	set, files := sources(t)
	names := map[string]string{} // by value
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range spec.Names {
				if !strings.HasPrefix(name.Name, "Reason") || i >= len(spec.Values) {
					continue
				}
				lit, ok := spec.Values[i].(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					t.Errorf("%s: %s is no plain string", set.Position(name.Pos()), name.Name)
					continue
				}
				value, err := strconv.Unquote(lit.Value)
				require.NoError(t, err)
				if !camelCase.MatchString(value) {
					t.Errorf("%s: %s is %q, which is not CamelCase", set.Position(name.Pos()), name.Name, value)
				}
				if other, exists := names[value]; exists {
					t.Errorf("%s: %s and %s are both %q", set.Position(name.Pos()), name.Name, other, value)
				}
				names[value] = name.Name
			}
			return true
		})
	}
	assert.GreaterOrEqual(t, len(names), 20, "only %d reasons found: the test no longer sees them", len(names))
}
