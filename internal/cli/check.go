// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/compatibility"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
)

const checkAbout = `Check what releases need: the API server, LeaderWorkerSet, the policies, a server in the cluster, and your own rights in the namespace.
It reads only, the policies if you may get admission policies and their bindings. It exits with 5 if something that every release needs is
missing.`

func newCheckCommand(o *connect.Options) *cobra.Command {
	return &cobra.Command{
		Use:     "check",
		Short:   "Check the cluster, the installation and your rights",
		Long:    checkAbout,
		Example: "  lockstep check\n  lockstep check -n serving",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			restConfig, err := o.RESTConfig()
			if err != nil {
				return err
			}
			namespace, err := o.WorkloadNamespace()
			if err != nil {
				return err
			}
			if err := o.Reach(cmd.Context()); err != nil {
				return fmt.Errorf("%w\n%s", err, session.ClusterHint(cmd))
			}
			c := &checker{namespace: namespace}
			if c.core, err = kubernetes.NewForConfig(restConfig); err == nil {
				c.objects, err = dynamic.NewForConfig(restConfig)
			}
			if err != nil {
				return fmt.Errorf("create client: %w", err)
			}
			if err := c.run(cmd.Context()); err != nil {
				return err
			}
			w := tabwriter.NewWriter(o.Stdout, 0, 0, 2, ' ', 0)
			for _, row := range c.rows {
				fmt.Fprintf(w, "%s\t%s\t%s\n", row.verdict, row.what, view.OneLine(row.text))
			}
			if err := w.Flush(); err != nil || !c.missing() {
				return err //nolint:wrapcheck // the caller's own stream
			}
			return exit.Errorf(exit.Found, "something that releases need is missing")
		},
	}
}

// Verdicts of a check. What is absent is needed by some releases only.
const (
	fine    = "ok"
	absent  = "-"
	missing = "MISSING"
)

type checked struct{ verdict, what, text string }

type checker struct {
	core      kubernetes.Interface
	objects   dynamic.Interface
	namespace string
	rows      []checked
	// policies are those of this version, and their bindings.
	policies []*unstructured.Unstructured
	// serverless: the cluster has no server.
	serverless bool
	// err is the first answer that says nothing of what is installed.
	err error
}

func (c *checker) add(verdict, what, format string, args ...any) {
	c.rows = append(c.rows, checked{verdict, what, fmt.Sprintf(format, args...)})
}

func (c *checker) missing() bool {
	return slices.ContainsFunc(c.rows, func(r checked) bool { return r.verdict == missing })
}

// failed notes an error unless the API server says by it that there is no such object, or that the user may not read it.
func (c *checker) failed(what string, err error) {
	if c.err == nil && err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		c.err = fmt.Errorf("check %s: %w", what, err)
	}
}

// run fails if the API server does not answer.
func (c *checker) run(ctx context.Context) error {
	server, err := c.core.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	if c.policies, err = config.Objects("admission/policy", "permissions/marks", "disaggregated/bounds", "disaggregated/children", "disaggregated/deletions", "disaggregated/scale"); err != nil {
		return err
	}
	c.add(fine, "Kubernetes", "%s (tested: %s)", server.GitVersion, strings.Join(compatibility.Kubernetes.Versions, ", "))
	if c.serves(lws.GroupVersion) {
		deployed, found, _ := c.deployed(ctx, "lws")
		if !found {
			deployed = "version unknown: " + deployed
		}
		tested := strings.Join(compatibility.LWS.Versions, ", ")
		if tag := strings.TrimPrefix(strings.Fields(deployed)[0], "lws:"); found && isOlder(tag, compatibility.LWS.Default()) {
			c.add(missing, "LeaderWorkerSet", "%s: install %s or later (tested: %s)", deployed, compatibility.LWS.Default(), tested)
		} else {
			c.add(fine, "LeaderWorkerSet", "%s (tested: %s)", deployed, tested)
		}
	} else {
		c.add(missing, "LeaderWorkerSet", "its API is not served: install LeaderWorkerSet %s or later", compatibility.LWS.Default())
	}
	c.policy(ctx, "mutating", "the API server keeps the hold, also if no driver runs",
		"only a driver restores a hold that another client removes: kubectl apply -k config/admission (Helm: policies.hold=true), with Kubernetes 1.36", "lockstep-hold")
	c.policy(ctx, "validating", "the permission on "+access.Resource+"."+access.Group+" is checked for every client",
		"who may edit a workload may write its record: kubectl apply -k config/permissions (Helm: policies.permissions=true)", "lockstep-marks")
	if c.serves(disaggregated.GroupVersion) {
		c.policy(ctx, "validating", "DisaggregatedSets can be adopted",
			"no DisaggregatedSet can be adopted: kubectl apply -k config/disaggregated (Helm: policies.disaggregated=true)",
			"lockstep-bounds", "lockstep-bounds-scale", "lockstep-bounds-deletions", "lockstep-bounds-writers")
	} else {
		c.add(absent, "DisaggregatedSet", "its API is not served")
	}
	deployed, found, hidden := c.deployed(ctx, "lockstep")
	if c.serverless = !found && !hidden; found {
		c.add(fine, "server", "%s", deployed)
	} else {
		c.add(absent, "server", "%s; commands run a driver of their own, with your rights", deployed)
	}
	if c.err != nil {
		return c.err
	}
	return c.rights(ctx)
}

// isOlder reports whether the tag of an image is an older version than another one.
func isOlder(tag, than string) bool {
	v, err := version.ParseSemantic(tag)
	return err == nil && v.LessThan(version.MustParseSemantic(than))
}

// serves reports whether the API server has a version of an API.
func (c *checker) serves(gv schema.GroupVersion) bool {
	list, err := c.core.Discovery().ServerResourcesForGroupVersion(gv.String())
	c.failed(gv.String(), err)
	return err == nil && len(list.APIResources) > 0
}

// deployed returns the images of the Deployments of an application, and how many of their pods are ready, or why it found none.
// They are hidden from a user who may not list them.
func (c *checker) deployed(ctx context.Context, app string) (text string, found, hidden bool) {
	list, err := c.core.AppsV1().Deployments("").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + app})
	c.failed("Deployments", err)
	if apierrors.IsForbidden(err) {
		return "you may not list Deployments of all namespaces", false, true
	}
	if err != nil || len(list.Items) == 0 {
		return "no Deployment with the label app.kubernetes.io/name=" + app, false, false
	}
	texts := make([]string, 0, len(list.Items))
	for i := range list.Items {
		d := &list.Items[i]
		image := d.Spec.Template.Spec.Containers[0].Image // the API server wants one at least
		texts = append(texts, fmt.Sprintf("%s in %s/%s, %d of %d ready",
			image[strings.LastIndex(image, "/")+1:], d.Namespace, d.Name, d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 1)))
	}
	return strings.Join(texts, "; "), true, false
}

// decides are the fields of an admission policy that decide about requests, besides those that [observe.DeniesRequests] judges.
var decides = []string{"matchConditions", "variables", "validations", "mutations"}

// differs reports whether an admission policy decides otherwise than the one of this version with its kind and name.
func (c *checker) differs(object *unstructured.Unstructured) bool {
	return slices.ContainsFunc(c.policies, func(u *unstructured.Unstructured) bool {
		return u.GetKind() == object.GetKind() && u.GetName() == object.GetName() && slices.ContainsFunc(decides, func(field string) bool {
			want, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", field)
			have, _, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", field)
			return !apiequality.Semantic.DeepEqual(want, have)
		})
	})
}

// policy checks admission policies of a type, each of which has a binding of its name. The first name stands for all of them.
func (c *checker) policy(ctx context.Context, typ, with, without string, names ...string) {
	for _, name := range names {
		for _, resource := range []string{"policies", "policybindings"} {
			object, err := c.objects.Resource(admissionv1.SchemeGroupVersion.WithResource(typ+"admission"+resource)).Get(ctx, name, metav1.GetOptions{})
			c.failed(name, err)
			switch {
			case apierrors.IsForbidden(err):
				// A user of one namespace may not read objects of the cluster, and needs none of them.
				c.add(absent, names[0], "you may not read admission policies and their bindings")
				return
			case err != nil:
				c.add(absent, names[0], "%s", without)
				return
			case !observe.DeniesRequests(object):
				c.add(absent, names[0], "%s %s is not in force for every request: %s", object.GetKind(), name, without)
				return
			case c.differs(object):
				c.add(absent, names[0], "%s %s is not that of this version: %s", object.GetKind(), name, without)
				return
			}
		}
	}
	c.add(fine, names[0], "%s", with)
}

// lacked returns the rights that the user lacks of those of the driver inside a command, by whether they are reads.
func (c *checker) lacked(ctx context.Context) (map[bool][]string, error) {
	rules, err := config.DriverRules()
	if err != nil {
		return nil, err
	}
	lacks := map[bool][]string{}
	for _, rule := range rules["lockstep-driver-core"] {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				if resource == "events" || verb == string(access.Drive) {
					continue // a release does without events, and drive has a row of its own
				}
				allowed, err := c.may(ctx, verb, rule.APIGroups[0], resource)
				if err != nil {
					return nil, err
				}
				if read := slices.Contains([]string{"get", "list", "watch"}, verb); !allowed {
					lacks[read] = append(lacks[read], verb+" "+resource)
				}
			}
		}
	}
	return lacks, nil
}

// rights checks what the driver inside a command needs: reads for status, plan and preflight, and writes for a release.
func (c *checker) rights(ctx context.Context) error {
	lacks, err := c.lacked(ctx)
	if err != nil {
		return err
	}
	drives, err := c.may(ctx, string(access.Drive), access.Group, access.Resource)
	if err != nil {
		return err
	}
	lacking := missing
	if drives && !c.serverless {
		lacking = absent // a server has these rights
	}
	for _, t := range []struct {
		read       bool
		what, role string
	}{
		{true, "rights to read", "view, and of reads of LeaderWorkerSets"}, {false, "rights to release", "lockstep-driver in config/base"},
	} {
		if lacked := lacks[t.read]; len(lacked) > 0 {
			c.add(lacking, t.what, "in namespace %s you may not %s: ask for those of ClusterRole %s, or use a server with --address",
				c.namespace, strings.Join(lacked, ", "), t.role)
		} else {
			c.add(fine, t.what, "in namespace %s, without a server", c.namespace)
		}
	}
	const drive = "drive " + access.Resource + "." + access.Group + ", which servers and the admission policies require"
	if drives {
		c.add(fine, "drive", "you may %s", drive)
	} else {
		c.add(missing, "drive", "you may not %s: ask for ClusterRole lockstep-operator", drive)
	}
	return nil
}

func (c *checker) may(ctx context.Context, verb, group, resource string) (bool, error) {
	// A review has the subresource in a field of its own.
	name, sub, _ := strings.Cut(resource, "/")
	review, err := c.core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: c.namespace, Verb: verb, Group: group, Resource: name, Subresource: sub,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask for your rights: %w", err)
	}
	return review.Status.Allowed, nil
}
