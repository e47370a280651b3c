// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package browser opens pages in a headless Chromium, for tests.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/debian"
)

// program returns the path of a Chromium, and installs Debian's if there is none.
var program = sync.OnceValues(func() (string, error) {
	if path, err := find(); err == nil {
		return path, nil
	}
	if err := debian.Install(context.Background(), os.Stderr, "chromium"); err != nil {
		return "", fmt.Errorf("tests of the dashboard: %w", err)
	}
	return find()
})

func find() (string, error) {
	for _, name := range []string{"chromium", "google-chrome", "chromium-browser"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no Chromium is installed: %w", exec.ErrNotFound)
}

// Page is an open page.
type Page struct {
	t   testing.TB
	ctx context.Context //nolint:containedctx // chromedp keeps the browser in it

	mu      sync.Mutex
	console []string
}

// Open opens a page in a browser of its own, until the test ends.
func Open(t testing.TB, url string) *Page {
	t.Helper()
	path, err := program()
	require.NoError(t, err)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WindowSize(1400, 900), chromedp.DisableGPU,
		chromedp.WSURLReadTimeout(await.Patience))
	allocator, stop := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, closeTab := chromedp.NewContext(allocator)
	p := &Page{t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("console of the page: %q", p.Console())
		}
		closeTab()
		stop()
	})
	messages := chromedp.Console(ctx)
	go func() {
		for message, err := range messages {
			if err != nil {
				return
			}
			p.mu.Lock()
			p.console = append(p.console, fmt.Sprintf("%s: %s %s", message.Type, message.Text, message.URL))
			p.mu.Unlock()
		}
	}()
	// The browser lives as long as the context of the first action.
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(url)), "open %s in %s", url, path)
	return p
}

// Console returns what the page and the browser wrote to the console: also uncaught exceptions, and violations of a policy.
func (p *Page) Console() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.console)
}

// Run performs an action in the page, and returns its value.
func Run[T any](p *Page, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, await.Patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	require.NoError(p.t, err, "in the browser")
	return value
}

// Eval returns the value of a JavaScript expression.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	return Run(p, chromedp.Evaluate[T](expression))
}

// AwaitText waits until the page's visible text has all words.
func (p *Page) AwaitText(words ...string) {
	p.t.Helper()
	p.awaitWords("document.body.innerText", words)
}

// AwaitAttribute waits until an attribute of an element has all words.
func (p *Page) AwaitAttribute(selector, attribute string, words ...string) {
	p.t.Helper()
	p.awaitWords(fmt.Sprintf("document.querySelector(%q)?.getAttribute(%q) ?? ''", selector, attribute), words)
}

func (p *Page) awaitWords(expression string, words []string) {
	p.t.Helper()
	await.Nil(p.t, "the page has "+strings.Join(words, ", "), func(context.Context) error {
		text := Eval[string](p, expression)
		for _, word := range words {
			if !strings.Contains(text, word) {
				return fmt.Errorf("%q is not in:\n%s", word, text)
			}
		}
		return nil
	})
}

// ColorScheme selects "light" or "dark" mode.
func (p *Page) ColorScheme(scheme string) {
	p.t.Helper()
	Run(p, func(ctx context.Context, target *chromedp.Target) (cdp.Empty, error) {
		return cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
	})
}

// Resize sets the size of the page in pixels, and fails if it is wider than that, or if texts of its cells or drawings overlap.
func (p *Page) Resize(width, height int64) {
	p.t.Helper()
	Run(p, chromedp.EmulateViewport(width, height))
	await.Nil(p.t, fmt.Sprintf("nothing overlaps at %d pixels", width), func(context.Context) error {
		if found := Eval[[]string](p, overlaps); len(found) > 0 {
			return fmt.Errorf("%q", found)
		}
		return nil
	})
}

// overlaps returns what is wider than the page or its cell, and the texts of a drawing that overlap.
const overlaps = `(() => {
  const found = [], box = e => e.getBoundingClientRect(), root = document.documentElement;
  if (root.scrollWidth > innerWidth) found.push('the page has ' + root.scrollWidth + ' pixels');
  for (const e of document.querySelectorAll('th, td, dt, dd, h1, h2, p, li'))
    if (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline' && !e.closest('.hidden')) found.push(e.textContent);
  for (const drawing of document.querySelectorAll('svg')) {
    const texts = [...drawing.querySelectorAll('text')];
    if (box(drawing).right > innerWidth) found.push('the drawing');
    texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
      const [p, q] = [box(a), box(b)];
      if (p.left < q.right && q.left < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom) found.push(a.textContent + ' on ' + b.textContent);
    }));
  }
  return found;
})()`

// Accessible returns "role: name" of what a screen reader is told.
func (p *Page) Accessible() []string {
	p.t.Helper()
	tree := Run(p, func(ctx context.Context, target *chromedp.Target) (accessibility.GetFullAXTreeResult, error) {
		return cdp.Call(ctx, target, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	})
	var all []string
	for _, n := range tree.Nodes {
		if n.Ignored || n.Role == nil {
			continue
		}
		var role, name string
		require.NoError(p.t, json.Unmarshal(n.Role.Value, &role))
		if n.Name != nil && n.Name.Value != nil {
			require.NoError(p.t, json.Unmarshal(n.Name.Value, &name))
		}
		all = append(all, role+": "+name)
	}
	return all
}

// Screenshot writes the whole page to a PNG file.
func (p *Page) Screenshot(path string) {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(path, Run(p, chromedp.Screenshot(chromedp.CSS("body"))), 0o600))
}
