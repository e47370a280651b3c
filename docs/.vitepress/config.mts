// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// The site of `make site`. Its pages are the Markdown files of this folder.
import { readdirSync } from 'node:fs'
import { posix } from 'node:path'
import { withMermaid } from 'vitepress-plugin-mermaid'

const repository = 'https://github.com/lockstep-rollouts/lockstep'

// Each page is in one kind. The build fails if one is in none.
const kinds: Record<string, Record<string, string>> = {
  Tutorial: { tutorial: 'A canary release in 15 minutes' },
  'How-to': {
    guide: 'User guide', disaggregated: 'DisaggregatedSets', plan: 'Plan a release', install: 'Install, upgrade and remove', 'argo-rollouts': 'Argo Rollouts',
    'kruise-rollouts': 'Kruise Rollouts', 'kruise-batchrelease': 'BatchRelease', traffic: 'Traffic', gates: 'Gates',
    monitoring: 'Monitoring', alerts: 'Alerts', permissions: 'Permissions', troubleshooting: 'Troubleshooting', releasing: 'Releasing Lockstep',
  },
  Reference: {
    cli: 'The command line', 'reference-cli': 'Commands and flags', 'reference-proto': 'The contract', 'reference-values': 'Values of the chart',
    'reference-metrics': 'Metrics', 'reference-preflight': 'Rules of preflight', 'reference-argo-fields': 'Fields of an Argo Rollout', 'reference-kruise-fields': 'Fields of a Kruise Rollout',
    compatibility: 'Compatibility', benchmarks: 'Benchmarks', glossary: 'Glossary',
  },
  Explanation: {
    'traffic-explained': 'Traffic, explained', architecture: 'Architecture', internals: 'Internals', security: 'Security', 'adr/README': 'Decisions',
  },
}

const pages = readdirSync(new URL('..', import.meta.url)).filter((name) => name.endsWith('.md') && name !== 'README.md').concat('adr/README.md') // the index of the decisions
const known = Object.values(kinds).flatMap((kind) => Object.keys(kind))
const without = pages.filter((name) => !known.includes(name.slice(0, -'.md'.length)))
if (without.length > 0) throw new Error(`docs/.vitepress/config.mts: these pages are in no kind: ${without.join(', ')}`)

export default withMermaid({
  title: 'Lockstep',
  description: 'Progressive delivery for LeaderWorkerSet, in complete groups of pods',
  outDir: '../dist/site',
  cacheDir: '../.cache/vitepress',
  srcExclude: ['node_modules/**'],
  rewrites: { 'README.md': 'index.md', 'adr/README.md': 'adr/index.md' },
  themeConfig: {
    search: { provider: 'local' },
    outline: [2, 3],
    socialLinks: [{ icon: 'github', link: repository }],
    sidebar: Object.entries(kinds).map(([text, kind]) => ({
      text,
      items: Object.entries(kind).filter(([name]) => pages.includes(`${name}.md`)).map(([name, title]) => ({ text: title, link: `/${name.replace('README', '')}` })),
    })),
  },
  markdown: {
    config: (md) => {
      // Braces in code are not Vue's.
      md.renderer.rules.code_inline = (tokens, i) => `<code v-pre>${md.utils.escapeHtml(tokens[i].content)}</code>`
      md.core.ruler.push('repository', (state) => {
        for (const block of state.tokens) {
          for (const token of block.children ?? []) {
            const href = token.type === 'link_open' ? token.attrGet('href') : null
            if (href?.startsWith('../')) {
              const [path, anchor] = href.split('#')
              const target = posix.normalize(posix.join('docs', posix.dirname(state.env.relativePath), path))
              if (!target.startsWith('docs/')) token.attrSet('href', `${repository}/blob/main/${target}${anchor ? `#${anchor}` : ''}`)
            }
          }
        }
      })
    },
  },
})
