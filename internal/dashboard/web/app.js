// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Everything that the server sends becomes text by textContent or setAttribute, never HTML.

const $ = id => document.getElementById(id);
const workloads = new Map(); // by key: what the server sent last
const lines = new Map(); // by key: the line of the list, which is kept, so that the focus stays
let status = { scope: '', synced: false, lost: '' };
let broken = false; // the connection to the dashboard

// element returns an element with attributes, and with texts and elements in it.
function element(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}

// update replaces the content of an element if it differs, so that selections and screen readers keep their place.
function update(e, value, make = v => [v]) {
  const now = JSON.stringify(value);
  if (e.shown === now) return;
  e.shown = now;
  e.replaceChildren(...make(value));
}

const units = [['d', 86400], ['h', 3600], ['m', 60], ['s', 1]];

function age(milliseconds) {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  const i = Math.max(0, units.findIndex(([, n]) => seconds >= n || n === 1));
  const rest = i < 3 ? Math.floor(seconds % units[i][1] / units[i + 1][1]) : 0;
  return Math.floor(seconds / units[i][1]) + units[i][0] + (rest ? rest + units[i + 1][0] : '');
}

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
  e.classList.toggle('passed', e.dataset.wording === 'deadline' && ms >= 0);
  update(e, wordings[e.dataset.wording](ms));
}

const since = w => time(w.since, w.atLeast ? 'atLeast' : 'since');

const state = w => [element('span', w.state === 'failed' ? { class: 'failed' } : {}, w.state), ` (${w.reason})`];

function picture(w) {
  const squares = w.groups.map(g => {
    const title = `${g.name}, ${g.leader}: ${g.status}`;
    const classes = ['group', g.letter, g.ready && 'ready', g.added && 'added'].filter(Boolean).join(' ');
    return element('span', { class: classes, title }, (g.ready ? g.letter : g.letter.toLowerCase()) || '·');
  });
  return element('div', { class: 'groups', role: 'img', 'aria-label': w.summary }, ...squares);
}

const cells = [
  w => state(w), w => [w.batch], w => [w.planned], w => [w.updated], w => [w.ready], w => [picture(w)],
  w => [w.traffic], w => [w.capacity], w => [since(w)], w => [time(w.deadline, 'deadline')],
];

const encoded = key => key.split('/').map(encodeURIComponent).join('/');
const link = key => '#/' + encoded(key);

// line returns the rows of a workload in the list: cells, and the message below them.
function line(w) {
  if (!lines.has(w.key)) {
    const name = element('th', { scope: 'rowgroup' }, element('a', { href: link(w.key) }, w.key));
    lines.set(w.key, element('tbody', {},
      element('tr', {}, name, ...cells.map((_, i) => element('td', i > 1 && i < 5 ? { class: 'number' } : {}))),
      element('tr', { class: 'note' }, element('td'), element('td', { colspan: cells.length }))));
  }
  const body = lines.get(w.key);
  const [row, note] = body.children;
  if (body.of !== w) cells.forEach((cell, i) => row.children[i + 1].replaceChildren(...cell(w)));
  update(note.lastChild, w.message);
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

const maxRows = 200;

function showDetail(key) {
  const w = workloads.get(key);
  update($('name'), key);
  const facts = w
    ? [['State', state(w)], ['Message', [w.message]], ['In state', [since(w)]], ['Deadline', [time(w.deadline, 'deadline')]], ['Batch', [w.batch]],
      ['Progress', [`${w.planned} planned, ${w.updated} updated, ${w.ready} ready`]], ['Traffic to the update', [w.traffic]], ['Capacity in groups', [w.capacity]],
      ...w.facts.map(([label, text]) => [label, [text]])]
    : [['State', [status.synced ? 'not under hold' : 'waiting for the driver']]];
  update($('facts'), w ?? status.synced, () => facts.flatMap(([label, content]) => [element('dt', {}, label), element('dd', {}, ...content)]));
  update($('picture'), w?.groups ?? [], () => w ? [picture(w)] : []);
  const groups = (w?.groups ?? []).toSorted((a, b) => a.ready - b.ready);
  const hidden = Math.max(groups.length - maxRows, 0) + (w?.omitted ?? 0);
  update($('omitted'), hidden ? `${hidden} more groups are not in this table.` : '');
  update($('groups'), groups.slice(0, maxRows), all => all.map(g => element('tr', {},
    element('th', { scope: 'row' }, g.name), ...[g.leader, g.revision || '-', g.pods, time(g.since, 'since'), g.status].map(c => element('td', {}, c)))));
  showHistory(key, w?.history ?? '');
}

let historyOf = ''; // what was requested last
let readings = 0; // of the history, which the driver completes after the end of a release, without another state

async function showHistory(key, version) {
  const wanted = JSON.stringify([key, version, readings]);
  if (wanted === historyOf) return;
  historyOf = wanted;
  let rows = [], problem = '';
  try {
    const answer = version ? await fetch('history/' + encoded(key)) : null;
    if (answer?.ok) rows = await answer.json();
    else problem = answer ? await answer.text() : '';
    if (answer?.ok && !rows.length) problem = 'No history yet.';
  } catch (e) {
    problem = `The history cannot be read: ${e.message}`;
  }
  if (historyOf !== wanted) return; // another one was requested meanwhile
  update($('history-problem'), problem);
  update($('history'), rows, all => all.map(row => element('tr', {}, ...row.map(text => element('td', {}, text)))));
}

const selected = () => location.hash.startsWith('#/') ? location.hash.slice(2).split('/').map(decodeURIComponent).join('/') : '';

function show() {
  scheduled = false;
  const running = [...workloads.values()].filter(w => w.live).length;
  update($('scope'), status.scope + ':');
  update($('running'), `${running} with a release, ${workloads.size} under hold,`);
  const problem = broken ? 'The dashboard does not answer: reconnecting. If lockstep dashboard was started again, open the URL that it printed.'
    : status.lost ? `The driver does not answer since ${new Date(status.lostSince).toLocaleTimeString()}, retrying: ${status.lost}` : '';
  $('problem').hidden = !problem;
  update($('problem'), problem);
  const key = selected();
  $('list').hidden = key !== '';
  $('detail').hidden = key === '';
  if (key) showDetail(key); else showList();
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
  events.onopen = () => { broken = false; workloads.clear(); changed(); };
  events.onerror = () => {
    broken = true;
    changed();
    // A browser reconnects by itself, except after an answer that is no stream.
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  };
  on('status', s => { status = s; });
  on('removed', key => { workloads.delete(key); lines.delete(key); });
  on('workload', w => {
    const before = workloads.get(w.key);
    if (before && before.state !== w.state) update($('announcement'), `${w.key}: ${w.state}`);
    workloads.set(w.key, w);
  });
}

addEventListener('hashchange', () => {
  update($('history'), selected(), () => []);
  show();
  if (selected()) $('name').focus();
});
$('all').addEventListener('change', show);
setInterval(() => document.querySelectorAll('time').forEach(tell), 1000);
setInterval(() => {
  if (selected() && !document.hidden) readings++;
  changed();
}, 5000);
follow();
