/* page: elements, formats and requests of the dashboard, which the other files use.
 *
 * Text from the cluster is inserted as text, never as markup. */
'use strict';

const $ = (id) => document.getElementById(id);

/* ---- elements and formats ---- */

const el = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : value);
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
};

/* Sets a node's text only if it differs, so that a user's selection in it survives. */
const put = (node, text) => {
  const wanted = text === null || text === undefined ? '' : String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
};

const set = (node, name, value) => {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
};

/* Makes the children of `parent` match `items`; reuses the elements of items that are still present. */
const keyed = (parent, items, key, build, update) => {
  const old = new Map([...parent.children].map((n) => [n.dataset.key, n]));
  let at = parent.firstChild;
  for (const item of items) {
    const name = String(key(item));
    let node = old.get(name);
    old.delete(name);
    if (!node) {
      node = build(item);
      node.dataset.key = name;
    }
    if (node !== at) parent.insertBefore(node, at);
    else at = at.nextSibling;
    update(node, item);
  }
  for (const node of old.values()) node.remove();
};

const number = (n) => Math.round(n).toLocaleString('en');
const plural = (n, word) => `${number(n)} ${word}${n === 1 ? '' : 's'}`;

const bytes = (n) => {
  if (n === null) return '–';
  let unit = 0;
  for (; n >= 1024 && unit < 5; unit++) n /= 1024;
  return `${n < 10 && unit ? n.toFixed(1) : Math.round(n)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][unit]}`;
};

/* Formats seconds: 3723 -> "1h02m". */
const span = (seconds) => {
  if (!Number.isFinite(seconds)) return '–';
  const s = Math.max(0, Math.round(seconds));
  const two = (n) => String(n).padStart(2, '0');
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${two(Math.floor(s % 3600 / 60))}m`;
  return `${Math.floor(s / 86400)}d${two(Math.floor(s % 86400 / 3600))}h`;
};

let clockAhead = 0; /* ms: the controller's clock minus the browser's */
const now = () => Date.now() + clockAhead;
const since = (time) => time ? span((now() - Date.parse(time)) / 1000) : '–';
const clock = (time) => {
  const t = new Date(time);
  const today = new Date(now()).toDateString() === t.toDateString();
  return today ? t.toLocaleTimeString('en-GB') : `${t.toLocaleDateString('en-CA')} ${t.toLocaleTimeString('en-GB')}`;
};
const startOf = (job) => Date.parse(job.expected_start_at) > now() ? `at ${clock(job.expected_start_at)}` : 'at any moment';
const people = (owner) => owner.replace(/^uid:/, 'uid ');

/* ---- requests ---- */

let token = sessionStorage.getItem('heddle-token');
let asking = null;

const askToken = (problem) => {
  asking = asking || new Promise((resolve) => {
    const dialog = $('token');
    put($('token-problem'), token ? problem : '');
    $('token-value').value = '';
    dialog.addEventListener('cancel', (e) => e.preventDefault());
    dialog.addEventListener('close', () => {
      token = $('token-value').value.trim();
      sessionStorage.setItem('heddle-token', token);
      asking = null;
      resolve();
    }, {once: true});
    dialog.showModal();
  });
  return asking;
};

const request = async (path, options) => {
  for (;;) {
    const answer = await fetch(path, {...options, headers: token ? {Authorization: `Bearer ${token}`} : {}, credentials: 'omit', cache: 'no-store'});
    if (answer.ok) return answer;
    const said = await answer.json().catch(() => null);
    const message = said && said.error ? said.error.message : `${path}: status ${answer.status}`;
    if (answer.status === 401) { await askToken(message); continue; }
    const failure = new Error(message);
    failure.status = answer.status;
    throw failure;
  }
};
const get = async (path) => (await request(path)).json();

/* ---- elements shared by views ---- */

const stateText = (node, state, text) => {
  set(node, 'data-state', state);
  put(node, text || state);
};

const progress = () => {
  const svg = curves.make('svg', {class: 'progress', viewBox: '0 0 100 3', preserveAspectRatio: 'none', 'aria-hidden': true});
  curves.make('rect', {width: 100, height: 3}, svg);
  curves.make('rect', {width: 0, height: 3}, svg);
  return svg;
};
const setProgress = (svg, part) => set(svg.lastChild, 'width', Math.max(0, Math.min(100, 100 * part)).toFixed(2));

const table = (heads, label) => {
  const body = el('tbody');
  return {
    node: el('table', {'aria-label': label}, el('thead', {}, el('tr', {}, ...heads.map(([text, number]) => el('th', {scope: 'col', class: number ? 'number' : null}, text)))), body),
    body,
  };
};

const eventTable = (label) => {
  const t = table([['Time'], ['Kind'], ['Where'], ['Message']], label);
  t.show = (events) => keyed(t.body, events, (e) => e.sequence,
    () => el('tr', {}, el('td', {class: 'when'}), el('td', {class: 'kind'}), el('td', {class: 'when'}), el('td', {class: 'message'})),
    (row, e) => {
      const [when, kind, where, message] = row.children;
      put(when, clock(e.time));
      put(kind, e.kind.replaceAll('_', ' '));
      put(where, [e.attempt ? `attempt ${e.attempt}` : '', e.node || '', e.rank === null ? '' : `rank ${e.rank}`].filter(Boolean).join(', '));
      put(message, e.message);
    });
  return t;
};

/* Whether scales leave out values far from the others; kept in the browser. */
const scale = {
  clips: (() => { try { return localStorage.getItem('heddle-scale') !== 'full'; } catch { return true; } })(),
  set(clips) {
    scale.clips = clips;
    try { localStorage.setItem('heddle-scale', clips ? 'clipped' : 'full'); } catch { /* private windows keep nothing */ }
  },
};

/* Returns a button that switches the scale of all charts of a view, which `draw` draws again. */
const scaleButton = (draw) => {
  const button = el('button', {type: 'button', class: 'scale', hidden: true});
  button.addEventListener('click', () => { scale.set(!scale.clips); draw(); });
  return {
    node: button,
    show(anyClipped) {
      button.hidden = scale.clips && !anyClipped;
      put(button, scale.clips ? 'Show the full scale' : 'Leave out outliers');
      set(button, 'title', scale.clips ? 'Some values are far from all others; marks at the edge of a chart show where' : 'Fit scales to most of the values');
    },
  };
};

const METRICS = [
  ['loss', 'Loss', 260, (v) => v === null ? '–' : Math.abs(v) < 100 && Math.abs(v) >= 0.001 ? `${+v.toFixed(3)}` : curves.short(v)],
  ['tokens_per_s', 'Tokens per second', 150, (v) => curves.short(v)],
  ['grad_norm', 'Gradient norm', 150, (v) => curves.short(v)],
  ['lr', 'Learning rate', 150, (v) => curves.short(v)],
  ['step_ms', 'Step time, ms', 150, (v) => curves.short(v)],
  ['mfu', 'Model FLOPs utilization', 150, (v) => v === null ? '–' : `${+(100 * v).toFixed(1)}%`],
  ['margin', 'Margin of pairs', 150, (v) => curves.short(v)],
  ['accuracy', 'Pairs with a margin above 0', 150, (v) => v === null ? '–' : `${+(100 * v).toFixed(1)}%`],
  ['reward', 'Reward', 150, (v) => curves.short(v)],
  ['reward_std', 'Std of rewards in groups', 150, (v) => curves.short(v)],
  ['frac_reward_zero_std', 'Groups with equal rewards', 150, (v) => v === null ? '–' : `${+(100 * v).toFixed(1)}%`],
  ['length_mean', 'Mean length of answers', 150, (v) => curves.short(v)],
  ['clipped', 'Answers cut at max_tokens', 150, (v) => v === null ? '–' : `${+(100 * v).toFixed(1)}%`],
  ['entropy', 'Entropy of answers', 150, (v) => curves.short(v)],
  ['logp_difference', 'Log-probabilities: drawn, trained', 150, (v) => curves.short(v)],
  ['rollout_ms', 'Time of writing answers, ms', 150, (v) => curves.short(v)],
  ['z_loss', 'Mean log² Z of the logits', 150, (v) => curves.short(v)],
  ['max_attention_logit', 'Largest attention score', 150, (v) => curves.short(v)],
  ['clipped_heads', 'Heads clipped', 150, (v) => curves.short(v)],
  ['reward_chosen', 'Reward of desirable answers', 150, (v) => curves.short(v)],
  ['reward_rejected', 'Reward of undesirable answers', 150, (v) => curves.short(v)],
  ['kl', 'KL term', 150, (v) => curves.short(v)],
  ['loss_scale', 'Loss scale', 150, (v) => curves.short(v)],
  ['router_balance', 'Router balance', 150, (v) => curves.short(v)],
  ['router_dropped', 'Choices dropped', 150, (v) => curves.short(v)],
];

/* Builds a chart for each metric; returns [{metric, figure, chart}]. */
const metricCharts = () => METRICS.map(([metric, title, height, format], i) => {
  const figure = el('figure', {class: i ? 'chart' : 'chart main', hidden: true, 'data-metric': metric});
  return {metric, figure, chart: curves.chart(figure, title, height, format)};
});
