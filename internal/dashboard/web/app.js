// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Everything that the server sends becomes text by textContent or setAttribute, never HTML.

const $ = id => document.getElementById(id);
const workloads = new Map(); // by key: what the server sent last
const lines = new Map(); // by key: the line of the list, which is kept, so that the focus stays
let status = { scope: '', synced: false, lost: '', links: [] };
let broken = false; // the connection to the dashboard

function fill(e, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}

// element and svg return an element with attributes, and with texts and elements in it.
const element = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);

// update replaces the content of an element if it differs, so that selections and screen readers keep their place.
function update(e, value, make = v => [v]) {
  const now = JSON.stringify(value);
  if (e.shown === now) return;
  e.shown = now;
  e.replaceChildren(...make(value));
}

// breakable lets a long name break at its parts.
const breakable = text => text.split(/(?<=[/:=-])|(?=[A-Z][a-z])/).flatMap((part, i) => i ? [element('wbr'), part] : [part]);

const units = [['d', 86400], ['h', 3600], ['m', 60], ['s', 1]];

function age(milliseconds) {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  const i = Math.max(0, units.findIndex(([, n]) => seconds >= n || n === 1));
  const rest = i < 3 ? Math.floor(seconds % units[i][1] / units[i + 1][1]) : 0;
  return Math.floor(seconds / units[i][1]) + units[i][0] + (rest ? rest + units[i + 1][0] : '');
}

const clock = at => new Date(at).toLocaleString(); // a release may last for days

const wordings = {
  since: ms => age(ms),
  atLeast: ms => 'over ' + age(ms),
  deadline: ms => ms < 0 ? 'in ' + age(-ms) : `passed ${age(ms)} ago`,
};

// time returns an element whose text changes as time passes.
function time(at, wording) {
  if (!at) return '-';
  const e = element('time', { datetime: at, 'data-wording': wording });
  tell(e);
  return e;
}

function tell(e) {
  const ms = Date.now() - Date.parse(e.dateTime);
  e.classList.toggle('wrong', e.dataset.wording === 'deadline' && ms >= 0);
  update(e, wordings[e.dataset.wording](ms));
}

const since = w => time(w.since, w.atLeast ? 'atLeast' : 'since');

const state = w => [element('span', w.state === 'failed' ? { class: 'wrong' } : {}, w.state), ' (', ...breakable(w.reason), ')'];

// summary describes the groups to screen readers.
function summary(w) {
  const words = w.groups.map(g => ({ A: 'stable', B: 'updated', C: 'other revision', '': 'leader missing,' })[g.letter] + (g.ready ? ' ready' : ' not ready'));
  return `${words.length} groups: ` + [...new Set(words)].map(word => `${words.filter(other => other === word).length} ${word}`).join(', ');
}

function picture(w) {
  const squares = w.groups.map(g => {
    const title = `${g.name}, ${g.leader}: ${g.status}`;
    const classes = ['group', g.letter, g.ready && 'ready', g.added && 'added'].filter(Boolean).join(' ');
    return element('span', { class: classes, title }, (g.ready ? g.letter : g.letter.toLowerCase()) || '·');
  });
  return element('div', { class: 'groups', role: 'img', 'aria-label': summary(w) }, ...squares);
}

function progress(w) {
  if (!w.planned) return ['-'];
  const text = `${w.ready} of ${w.planned} groups ready`;
  return [w.batch === '-' ? '' : `batch ${w.batch}`, element('progress', { value: w.ready, max: w.planned, 'aria-label': text }), text];
}

const cells = [
  state,
  progress,
  w => [element('div', {}, since(w), ' in this state'), ...w.deadline ? ['deadline ', time(w.deadline, 'deadline')] : []],
];

const encoded = key => key.split('/').map(encodeURIComponent).join('/');
const link = (key, revision) => `#/${encoded(key)}` + (revision ? `?revision=${encodeURIComponent(revision)}` : '');

// route returns the workload and the revision that the URL names, each empty without one.
function route() {
  const [path, query] = location.hash.split('?');
  return { key: path.startsWith('#/') ? path.slice(2) : '', revision: new URLSearchParams(query).get('revision') ?? '' };
}

// line returns the rows of a workload in the list: cells, and the groups and the message below them.
function line(w) {
  if (!lines.has(w.key)) {
    const name = element('th', { scope: 'rowgroup' }, element('a', { href: link(w.key) }, ...breakable(w.key)));
    lines.set(w.key, element('tbody', {},
      element('tr', {}, name, ...cells.map(() => element('td'))),
      element('tr', { class: 'note' }, element('td', { colspan: cells.length + 1 }))));
  }
  const body = lines.get(w.key);
  const [row, note] = body.children;
  if (body.of !== w) cells.forEach((cell, i) => row.children[i + 1].replaceChildren(...cell(w)));
  update(note.firstChild, [w.groups, w.traffic, w.message], () => [picture(w), ...w.traffic === '-' ? [] : [w.traffic, element('br')], w.message]);
  body.of = w;
  return body;
}

function showList() {
  const visible = [...workloads.values()].filter(w => w.live || $('all').checked).sort((a, b) => a.key < b.key ? -1 : 1).map(line);
  const table = $('workloads');
  if (visible.length !== table.tBodies.length || visible.some((body, i) => body !== table.tBodies[i])) table.replaceChildren(table.tHead, ...visible);
  $('none').hidden = visible.length > 0;
  update($('none'), status.synced ? 'No release is running.' : 'Waiting for the driver.');
}

// What is wrong, and the command that helps.

const maxProblems = 3;

function problems(w) {
  const [namespace, ...name] = w.key.split('/');
  const where = `--namespace ${namespace}`;
  const failed = w.state === 'failed'
    ? [{ failed: true, text: `${w.key} failed (${w.reason}): ${w.message}` + (w.host && `. It is driven by ${w.host}`),
      command: `lockstep ${w.host ? 'status' : 'abort'} ${name.join('/')} ${where}${status.lockstep}` }] : [];
  return [...failed, ...w.groups.filter(g => g.wrong && w.running).map(g => ({
    text: `${w.key}, ${g.name}: ${g.status}`, command: `kubectl describe pod ${g.pod || g.leader} ${where}${status.kubectl}`,
  }))];
}

// showBanner shows what is wrong, failed releases first.
function showBanner(wrong) {
  const shown = wrong.toSorted((a, b) => !!b.failed - !!a.failed).slice(0, maxProblems);
  $('banner').hidden = !wrong.length;
  update($('banner'), [shown, wrong.length], () => [...shown.flatMap(({ text, command }) => {
    const copy = element('button', { type: 'button', 'aria-label': `Copy: ${command}` }, 'Copy');
    copy.addEventListener('click', async () => {
      await navigator.clipboard.writeText(command);
      update($('announcement'), `Copied: ${command}`);
    });
    return [element('p', {}, text), element('p', {}, element('code', {}, command), copy)];
  }), ...wrong.length > shown.length ? [element('p', {}, `and ${wrong.length - shown.length} more`)] : []]);
}

// Tracks are what this page has seen of running releases, by workload. A reload keeps them.

const maxSpans = 50, maxPoints = 500; // of a lane, and of a release: the oldest go first
let tracks = new Map();
try {
  tracks = new Map(JSON.parse(sessionStorage.getItem('tracks') ?? '[]'));
} catch {
  // Of another program at this address, or the browser stores nothing.
}

addEventListener('pagehide', () => {
  try {
    sessionStorage.setItem('tracks', JSON.stringify([...tracks]));
  } catch {
    sessionStorage.clear(); // too large
  }
});

function add(list, item, max) {
  list.push(item);
  if (list.length > max) list.shift();
}

const look = g => g.wrong ? 'wrong' : g.ready ? g.letter : g.letter ? 'starting' : '';

function record(w) {
  const now = Date.now();
  let t = tracks.get(w.key);
  if (t?.release !== w.release) t = null;
  if (!w.running) {
    if (t) t.end ??= Math.max(Date.parse(w.since), t.points.at(-1).at);
    else tracks.delete(w.key);
    return;
  }
  t ??= { release: w.release, begin: Math.min(Date.parse(w.began ?? w.since), now), seen: now, lanes: {}, points: [], events: [] };
  t.end = null;
  tracks.set(w.key, t);
  const gone = new Set(Object.keys(t.lanes));
  for (const g of w.groups) {
    const lane = t.lanes[g.leader] ??= { name: g.name, spans: [] };
    const last = lane.spans.at(-1);
    gone.delete(g.leader);
    if (last?.look === look(g)) continue;
    // The driver knows since when a group is as it was seen first.
    add(lane.spans, { at: last ? now : Math.min(Math.max(Date.parse(g.since) || now, t.begin), now), look: look(g), status: g.status }, maxSpans);
    if (last && (g.wrong || g.ready && g.letter === 'B')) add(t.events, { at: now, text: `${g.name}: ${g.status}` }, maxPoints);
  }
  for (const name of gone) if (t.lanes[name].spans.at(-1).look) add(t.lanes[name].spans, { at: now, look: '' }, maxSpans);
  const phase = w.batch === '-' ? w.state : `batch ${w.batch}`;
  const capacity = Math.round(100 * w.groups.filter(g => g.ready).length / Math.max(w.replicas, 1));
  const point = { at: now, state: w.state, phase, capacity, share: w.share };
  const last = t.points.at(-1);
  if (last && JSON.stringify({ ...last, at: now }) === JSON.stringify(point)) return;
  add(t.points, point, maxPoints);
  if (last?.state !== w.state || last.phase !== phase || last.share !== w.share) {
    add(t.events, { at: now, text: `${w.state} (${w.reason})` + (w.batch === '-' ? '' : `, batch ${w.batch}`) + (w.traffic === '-' ? '' : `, ${w.traffic}`) }, maxPoints);
  }
}

// runs joins points with the same value: [value, from, to].
function runs(t, points, value, end) {
  const joined = [];
  points.forEach((p, i) => {
    const to = points[i + 1]?.at ?? end;
    if (joined.at(-1)?.[0] === value(p)) joined.at(-1)[2] = to;
    else joined.push([value(p), p.at, to]);
  });
  return joined;
}

const maxLanes = 60;
const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
const stateLooks = { ready: 'B', failed: 'wrong', verifying: 'starting', holding: 'A' };
const stateTitles = { ready: 'ready: the batch is complete, and the host decides: gates, pauses, promotion', verifying: 'verifying: minimum ready time or traffic' };

// draw returns the picture of a release over time: a lane for its states and one for each group, and below them capacity and share.
function draw(w, t, width) {
  const left = 72, top = 22, step = 20, chart = 80, plot = width - left - 14;
  const end = t.end ?? Date.now(), total = Math.max(end - t.begin, 1000);
  const x = at => left + plot * (at - t.begin) / total;
  const lanes = Object.values(t.lanes);
  const drawn = lanes.filter((lane, i) => lanes.length <= maxLanes || lane.spans.length > 1 || lane.spans[0].look !== 'A').slice(0, maxLanes);
  update($('caption'), [t.release, t.seen > t.begin + 5000, drawn.length < lanes.length], () => [`Release ${t.release}`,
    t.seen > t.begin + 5000 ? `, drawn since ${clock(t.seen)}, when this page first saw it` : '',
    drawn.length < lanes.length ? `. ${lanes.length - drawn.length} more groups are not drawn.` : '.']);
  const bottom = top + step * (drawn.length + 1) + 6, base = bottom + 14 + chart;
  const text = (content, at, y, name) => svg('text', { x: at, y, class: name }, content);
  const fits = (content, from, to) => x(to) - x(from) > 7 * content.length + 6;
  const parts = [];
  const phases = runs(t, t.points, p => p.phase, end);
  phases.forEach(([phase, from, to], i) => {
    const short = phase.replace(/ \(.*/, '');
    const label = [phase, short].find(l => fits(l, from, to));
    if (i % 2 === 0) parts.push(svg('rect', { class: 'band', x: x(from), y: 0, width: x(to) - x(from), height: base }));
    else parts.push(svg('path', { class: 'edge', d: `M${x(from)} 0V${base}M${x(to)} 0V${base}` }));
    if (label) parts.push(text(label, (x(from) + x(to)) / 2, 14, 'middle'));
  });
  const bar = (name, title, from, to, y, thin) => svg('rect', {
    class: name, x: x(from), y: y + (thin ? 5 : 0), width: Math.max(x(to) - x(from) - 1, 1), height: thin ? 6 : step - 4, rx: 2,
  }, svg('title', {}, `${title}, ${clock(from)} to ${clock(to)}`));
  parts.push(text('state', left - 8, top + 12, 'end'));
  for (const [word, from, to] of runs(t, t.points, p => p.state, end)) {
    parts.push(bar(stateLooks[word] ?? 'works', stateTitles[word] ?? word, from, to, top));
    if (fits(word, from, to)) parts.push(text(word, x(from) + 5, top + 12, 'on ' + (stateLooks[word] ?? '')));
  }
  drawn.forEach((lane, i) => {
    const y = top + step * (i + 1) + 4;
    parts.push(text(lane.name, left - 8, y + 12, 'end'));
    lane.spans.forEach((span, n) => {
      const to = lane.spans[n + 1]?.at ?? end;
      if (span.look) parts.push(bar(span.look, `${lane.name}: ${span.status}`, span.at, to, y, span.look === 'starting'));
      const label = span.look === 'wrong' && [span.status, '!'].find(l => fits(l, span.at, to));
      if (label) parts.push(text(label, x(span.at) + 5, y + 12, 'on'));
    });
  });
  const most = Math.max(100, ...t.points.map(p => p.capacity));
  const y = percent => base - chart * percent / most;
  for (const percent of new Set([0, 100, most])) {
    if (percent <= 100 || most >= 130) parts.push(text(`${percent}%`, left - 8, y(percent) + 4, 'end'));
    parts.push(svg('path', { class: 'grid', d: `M${left} ${y(percent)}H${left + plot}` }));
  }
  for (const name of ['capacity', 'share']) {
    const d = t.points.map((p, i) => `${i ? 'H' : 'M'}${x(p.at)}${i ? 'V' : ' '}${y(p[name])}`).join('') + `H${x(end)}`;
    parts.push(svg('path', { class: `line ${name}`, d }));
  }
  const tick = 1000 * (steps.find(s => total / 1000 / s <= plot / 70) ?? 2419200);
  for (let at = 0; at <= total; at += tick) parts.push(text(age(at), Math.min(x(t.begin + at), left + plot - 4), base + 18, 'middle'));
  const told = phases.map(([phase, from]) => `${phase} from ${age(from - t.begin)}`).join(', ');
  return svg('svg', { width, height: base + 24, role: 'img', 'aria-label': `Timeline of release ${t.release}: ${told}. ${summary(w)}.` }, ...parts);
}

function showTimeline(w) {
  const t = w && tracks.get(w.key);
  const width = $('timeline').clientWidth; // 0 while it is hidden
  if (!t) update($('caption'), 'It is drawn while a release runs.');
  $('legend').hidden = !t;
  $('timeline').replaceChildren(...t && width ? [draw(w, t, width)] : []);
  update($('events'), t?.events ?? [], all => all.toReversed().map(e => element('li', {}, element('time', { datetime: new Date(e.at).toISOString() }, clock(e.at)), ` ${e.text}`)));
}

const maxRows = 200;

function showDetail({ key, revision }) {
  const w = workloads.get(key);
  const t = tracks.get(key);
  const row = history.key === key && history.rows.find(r => id(r) === revision);
  update($('name'), revision ? `${key}, revision ${revision}` : key);
  update($('links'), [status.links, key, w?.reason], () => (status.links ?? []).map(([title, url]) => {
    const values = { namespace: key.split('/')[0], name: key.slice(key.indexOf('/') + 1), reason: w?.reason ?? '' };
    return element('a', { href: url.replace(/\{(namespace|name|reason)\}/g, (_, name) => encodeURIComponent(values[name])), rel: 'noreferrer' }, title);
  }));
  const facts = revision ? row ? [['Revision', row.cells[1]], ['Hash', row.cells[2]], ['When', when(row)], ['Took', row.took], ['Changed by', row.cells[5]], ['Release', row.cells[6]],
    ['Images', row.cells[4]], ['Outcome', row.cells[7]]].filter(([, text]) => text && text !== '-').map(([label, text]) => [label, [text]]) : []
    : w ? [['State', state(w)], ['Progress', progress(w)], ['In state', [since(w)]], ['Deadline', [time(w.deadline, 'deadline')]],
      ...t ? [['Duration', [t.end ? age(t.end - t.begin) : time(new Date(t.begin).toISOString(), 'since'), `, began ${clock(t.begin)}`]]] : [],
      ['Traffic to the update', [w.traffic]], ['Capacity in groups', [w.capacity]], ...w.facts.map(([label, text]) => [label, [text]])]
    : [['State', [status.synced ? 'not under hold' : 'waiting for the driver']]];
  update($('message'), revision || !w || w.state === 'failed' ? '' : w.message); // the banner has that of a failed release
  update($('facts'), [w, row, revision, status.synced, t?.end], () => facts.map(([label, content]) => element('div', {}, element('dt', {}, label), element('dd', {}, ...content))));
  $('now').hidden = revision !== '';
  if (!revision) {
    showTimeline(w);
    update($('picture'), w?.groups ?? [], () => w ? [picture(w)] : []);
    const groups = (w?.groups ?? []).toSorted((a, b) => a.ready - b.ready);
    const hidden = Math.max(groups.length - maxRows, 0) + (w?.omitted ?? 0);
    update($('omitted'), hidden ? `${hidden} more groups are not in this table.` : '');
    update($('groups'), groups.slice(0, maxRows), all => all.map(g => element('tr', {},
      element('th', { scope: 'row' }, g.name, element('br'), element('small', {}, g.leader)), element('td', {}, g.revision || '-'), element('td', {}, g.pods),
      element('td', {}, g.status, ...g.since ? [element('br'), element('small', {}, 'for ', time(g.since, 'since'))] : []))));
  }
  showHistory(key, revision);
  if (w) readHistory(w);
}

// The history: read when a workload is shown, and again when its release begins or ends.

let history = { key: '', of: '', rows: [], problem: '' };

const id = row => row.cells[1] === '-' ? row.cells[2] : row.cells[1];
const when = row => row.cells[3] === '-' ? '-' : clock(row.cells[3]);

function showHistory(key, revision) {
  const { rows, problem } = history.key === key ? history : { rows: [], problem: '' };
  update($('history-problem'), problem);
  update($('history'), [key, rows, revision], () => rows.map(row => element('tr', {},
    element('th', { scope: 'row' }, row.cells[0] + ' ', element('a', { href: link(key, id(row)), ...id(row) === revision ? { 'aria-current': 'page' } : {} }, id(row)),
      element('br'), element('small', {}, row.cells[2])),
    element('td', {}, when(row), ...row.took ? [element('br'), element('small', {}, `took ${row.took}`)] : []),
    element('td', {}, row.cells[6], element('br'), row.cells[7]), element('td', {}, ...breakable(row.cells[4])))));
  const shown = rows.find(row => id(row) === revision) ?? (revision ? null : rows[0]);
  update($('changes'), shown?.from ? `Changes of the template, from revision ${shown.from} to ${id(shown)}` : 'Changes of the template');
  const text = !shown ? '' : shown.from ? shown.diff.trimEnd() || 'No difference.' : 'No earlier promoted revision is kept.';
  update($('diff'), text, () => text.split('\n').map(l => element('span', { class: { '+': 'plus', '-': 'minus' }[l[0]] ?? '' }, l + '\n')));
}

const maxAttempts = 5;

async function readHistory(w, attempt = 0) {
  const of = `${w.key} ${w.history}`;
  if (!attempt && history.of === of) return;
  if (!attempt) history = { key: w.key, of, rows: history.key === w.key ? history.rows : [], problem: '' };
  const mine = history;
  try {
    const answer = await fetch('history/' + encoded(w.key));
    if (answer.ok) mine.rows = await answer.json();
    mine.problem = !answer.ok ? await answer.text() : mine.rows.length ? '' : 'No history yet.';
  } catch (e) {
    mine.problem = `The history cannot be read: ${e.message}`;
  }
  if (history !== mine) return; // another one was requested meanwhile
  changed();
  // The driver records the end of a release shortly after it reports it.
  const unfinished = !w.running && mine.rows.some(row => !row.took && row.cells[6] === w.release);
  if (unfinished && attempt < maxAttempts) setTimeout(() => history === mine && readHistory(w, attempt + 1), 1000 * 2 ** attempt);
}

function show() {
  scheduled = false;
  const running = [...workloads.values()].filter(w => w.live).length;
  update($('scope'), status.scope && status.scope + ':');
  update($('running'), `${running} with a release, ${workloads.size} under hold,`);
  const problem = broken ? 'The dashboard does not answer: reconnecting. If lockstep dashboard was started again, open the URL that it printed.'
    : status.lost ? `The driver has not answered since ${clock(status.lostSince)}. Retrying: ${status.lost}` : '';
  $('problem').hidden = !problem;
  update($('problem'), problem);
  const shown = route();
  showBanner([...workloads.values()].filter(w => !shown.key || w.key === shown.key).flatMap(problems));
  $('list').hidden = shown.key !== '';
  $('detail').hidden = shown.key === '';
  if (shown.key) showDetail(shown); else showList();
  document.title = shown.key ? `${$('name').textContent} - Lockstep` : 'Lockstep releases';
}

let scheduled = false;

// changed shows everything that has changed at the browser's next frame, however many messages arrive until then.
function changed() {
  if (!scheduled) requestAnimationFrame(show);
  scheduled = true;
}

function follow() {
  const events = new EventSource('events');
  const on = (name, receive) => events.addEventListener(name, e => { receive(JSON.parse(e.data)); changed(); });
  events.onopen = () => { broken = false; workloads.clear(); history.of = ''; changed(); };
  events.onerror = () => {
    broken = true;
    changed();
    // A browser reconnects by itself, except after an answer that is no stream.
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  };
  on('status', s => { status = s; });
  on('removed', key => { workloads.delete(key); lines.delete(key); tracks.delete(key); });
  on('workload', w => {
    const before = workloads.get(w.key);
    if (before && before.state !== w.state) update($('announcement'), `${w.key}: ${w.state}`);
    workloads.set(w.key, w);
    record(w);
  });
}

addEventListener('hashchange', () => {
  show();
  $(route().key ? 'name' : 'releases').focus();
});
addEventListener('resize', changed);
$('all').addEventListener('change', show);
setInterval(() => {
  document.querySelectorAll('time[data-wording]').forEach(tell);
  // Lanes grow, except under the pointer, which shows a title.
  const { key, revision } = route();
  const t = tracks.get(key);
  if (t && !t.end && !revision && !$('timeline').matches(':hover')) showTimeline(workloads.get(key));
}, 1000);
follow();
