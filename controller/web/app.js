/* app: the dashboard. It only reads: GET /api/v1/..., whose objects are those of `heddle -o json`.
 *
 * A view is a function that builds its elements once and returns {title, wants, load, show}: load
 * fetches data, show writes it into the elements, wants decides whether a change concerns the view.
 * The stream reports changes; the view is then reloaded, at most once a second. Text from the cluster
 * is inserted as text, never as markup. */
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

/* ---- jobs ---- */

/* Columns after the name, per section of the job list: [head, class, label on narrow pages]. */
const JOB_COLUMNS = {
  running: [['State'], ['Loss', 'spark-cell'], ['', 'number', 'loss'], ['Step', 'progress-cell'], ['Tokens/s', 'number', 'tokens/s'], ['Devices', 'number', 'devices'], ['Age', 'number', 'age']],
  waiting: [['State'], ['Why it waits', 'message'], ['Devices', 'number', 'devices'], ['Age', 'number', 'age']],
  ended: [['State'], ['Step', 'number', 'step'], ['Loss', 'number', 'loss'], ['Ended', 'number', 'ended']],
};

const jobTable = (label, part) => {
  const columns = JOB_COLUMNS[part];
  const t = table([['Job'], ...columns.map(([head, kind]) => [head, kind === 'number'])], label);
  const build = (job) => {
    const name = el('td', {class: 'name'}, el('a', {class: 'row', href: `#/jobs/${job.job}`}), el('small'), el('span', {class: 'why', hidden: true}));
    const cells = columns.map(([, kind, narrow]) => el('td', {class: kind, 'data-label': narrow}));
    cells[0].append(el('span', {class: 'state'}));
    if (part === 'running') {
      cells[1].append(curves.make('svg', {class: 'spark', 'aria-hidden': true}));
      cells[3].append(el('span'), progress());
    }
    return el('tr', {class: 'link'}, name, ...cells);
  };
  const fill = {
    running(cells, job) {
      put(cells[2], job.loss === null ? '' : job.loss.toFixed(4));
      put(cells[3].firstChild, `${number(job.step)} of ${number(job.steps)}`);
      setProgress(cells[3].lastChild, job.step / job.steps);
      put(cells[4], job.tokens_per_s === null ? '' : curves.short(job.tokens_per_s, 3));
      put(cells[5], job.devices);
      put(cells[6], since(job.submitted_at));
    },
    waiting(cells, job) {
      put(cells[1], `${job.reason}${job.expected_start_at ? `; expected to start ${startOf(job)}` : ''}`);
      put(cells[2], job.devices);
      put(cells[3], since(job.submitted_at));
    },
    ended(cells, job) {
      put(cells[1], `${number(job.step)} of ${number(job.steps)}`);
      put(cells[2], job.loss === null ? '' : job.loss.toFixed(4));
      put(cells[3], `${since(job.ended_at)} ago`);
    },
  }[part];
  const update = (row, job) => {
    const [name, ...cells] = row.children;
    const [link, small, why] = name.children;
    put(link, job.name);
    put(small, `  ${job.job}, ${people(job.owner)}${job.queue !== 'default' ? `, ${job.queue}` : ''}${job.restarts ? `, ${plural(job.restarts, 'restart')}` : ''}`);
    put(why, part === 'waiting' ? '' : job.reason);
    set(why, 'class', job.state === 'failed' ? 'why bad' : 'why');
    why.hidden = !why.textContent;
    stateText(cells[0].firstChild, job.state, job.held && job.state === 'queued' ? 'held' : job.state);
    fill(cells, job);
  };
  t.show = (jobs) => keyed(t.body, jobs, (j) => j.job, build, update);
  return t;
};

const SPARKS_MAX = 12, SPARK_MS = 5000;

const jobsView = (main) => {
  const filter = el('input', {id: 'filter', type: 'search', placeholder: 'Filter by name, owner, state', 'aria-label': 'Filter jobs', autocomplete: 'off', spellcheck: 'false'});
  const running = jobTable('Jobs that run', 'running'), waiting = jobTable('Jobs that wait', 'waiting'), done = jobTable('Jobs that have ended', 'ended');
  const parts = [['Running', running], ['Waiting', waiting], ['Ended', done]].map(([title, t]) => {
    const count = el('small'), more = el('button', {type: 'button', hidden: true}, 'Show more');
    const part = {t, count, more, limit: 50, jobs: [], next: null};
    part.node = el('section', {hidden: true}, el('div', {class: 'bar'}, el('h2', {}, title), count), t.node, more);
    more.addEventListener('click', () => { part.limit = Math.min(1000, part.limit * 4); refresh(); });
    return part;
  });
  const [runs, waits, ends] = parts;
  const empty = el('p', {class: 'empty', hidden: true});
  ends.limit = 20;
  main.append(el('section', {}, el('div', {class: 'bar'}, el('h1', {}, 'Jobs'), filter), empty), ...parts.map((p) => p.node));
  const drawn = new Map();

  const matches = (job) => {
    const wanted = filter.value.trim().toLowerCase();
    return !wanted || [job.name, job.owner, job.state, job.queue, String(job.job), job.reason].some((t) => t.toLowerCase().includes(wanted));
  };
  const show = () => {
    for (const part of parts) {
      const jobs = part.jobs.filter(matches);
      part.t.show(jobs);
      part.node.hidden = !jobs.length;
      put(part.count, part.next ? `the newest ${jobs.length}` : plural(jobs.length, 'job'));
      part.more.hidden = !part.next || part.limit >= 1000;
    }
    empty.hidden = parts.some((p) => !p.node.hidden);
    put(empty, filter.value ? 'No job matches the filter.' : 'No jobs yet. Submit one with: heddle submit job.yaml');
  };
  const sparks = async () => {
    for (const job of runs.jobs.slice(0, SPARKS_MAX)) {
      const before = drawn.get(job.job);
      if (before && (before.step === job.step || Date.now() - before.at < SPARK_MS)) continue;
      drawn.set(job.job, {step: job.step, at: Date.now()});
      const curve = await get(`/api/v1/jobs/${job.job}/curve?buckets=64`).catch(() => null);
      const row = [...running.body.children].find((r) => r.dataset.key === String(job.job));
      if (curve && row) curves.spark(row.querySelector('.spark'), curve, 'loss');
    }
  };
  filter.addEventListener('input', show);
  filter.addEventListener('keydown', (e) => {
    if (e.key === 'Escape') { filter.value = ''; show(); filter.blur(); e.stopPropagation(); }
  });
  return {
    title: 'Jobs',
    wants: () => true,
    async load() {
      const states = ['running,stopping', 'queued', 'succeeded,failed,cancelled'];
      const lists = await Promise.all(parts.map((p, i) => get(`/api/v1/jobs?state=${states[i]}&limit=${p.limit}`)));
      parts.forEach((p, i) => { p.jobs = lists[i].items; p.next = lists[i].next_page; });
      if (!waits.next) waits.jobs.reverse(); /* oldest first: it is the next to start */
    },
    show() { show(); sparks(); },
  };
};

/* ---- one job ---- */

const CHARTS = [
  ['loss', 'Loss', 260, (v) => v === null ? '–' : Math.abs(v) < 100 && Math.abs(v) >= 0.001 ? `${+v.toFixed(3)}` : curves.short(v)],
  ['tokens_per_s', 'Tokens per second', 150, (v) => curves.short(v)],
  ['grad_norm', 'Gradient norm', 150, (v) => curves.short(v)],
  ['lr', 'Learning rate', 150, (v) => curves.short(v)],
  ['step_ms', 'Step time, ms', 150, (v) => curves.short(v)],
  ['mfu', 'Model FLOPs utilization', 150, (v) => v === null ? '–' : `${+(100 * v).toFixed(1)}%`],
  ['margin', 'Margin of pairs', 150, (v) => curves.short(v)],
  ['accuracy', 'Pairs with a margin above 0', 150, (v) => v === null ? '–' : `${+(100 * v).toFixed(1)}%`],
  ['z_loss', 'Mean log² Z of the logits', 150, (v) => curves.short(v)],
  ['reward_chosen', 'Reward of desirable answers', 150, (v) => curves.short(v)],
  ['reward_rejected', 'Reward of undesirable answers', 150, (v) => curves.short(v)],
  ['kl', 'KL term', 150, (v) => curves.short(v)],
  ['loss_scale', 'Loss scale', 150, (v) => curves.short(v)],
  ['router_balance', 'Router balance', 150, (v) => curves.short(v)],
  ['router_dropped', 'Choices dropped', 150, (v) => curves.short(v)],
];
const EVIDENCE = new Set(['hang', 'straggler', 'rank_exit', 'node_lost', 'diverged']);

const jobView = (main, id) => {
  const name = el('h1'), state = el('span', {class: 'state'}), sub = el('p', {class: 'small'});
  const why = el('div', {class: 'callout', hidden: true}), evidence = el('div', {class: 'callout bad', hidden: true});
  const facts = el('dl', {class: 'facts'});
  const legend = el('small', {class: 'legend'});
  const charts = CHARTS.map(([metric, title, height, format], i) => {
    const figure = el('figure', {class: i ? 'chart' : 'chart main', hidden: true, 'data-metric': metric});
    return {metric, figure, chart: curves.chart(figure, title, height, format)};
  });
  const scoreFigure = el('figure', {class: 'chart', hidden: true, 'data-metric': 'scores'});
  const scoreChart = curves.chart(scoreFigure, 'Scores of questions', 160, (v) => curves.short(v, 4));
  const plots = el('section', {hidden: true}, el('div', {class: 'bar'}, el('h2', {}, 'Curves'), legend), el('div', {class: 'charts'}, ...charts.map((c) => c.figure), scoreFigure));
  const attempts = table([['Attempt'], ['State'], ['Ranks', true], ['From step', true], ['Started'], ['End']], 'Attempts');
  const attemptPart = el('section', {hidden: true}, el('h2', {}, 'Attempts'), attempts.node);
  const events = eventTable('Events of the job');
  const eventPart = el('section', {hidden: true}, el('h2', {}, 'Events'), events.node);
  main.append(el('section', {}, el('a', {class: 'back', href: '#/'}, '← Jobs'), el('div', {class: 'title'}, name, state), sub, why, evidence, facts), plots, attemptPart, eventPart);
  let job = null, curve = null, list = [], checkpoints = [];

  const remaining = () => {
    const ms = curve && curve.series.find((s) => s.name === 'step_ms');
    const last = ms && ms.last.filter((v) => v !== null).slice(-8);
    return last && last.length && job.state === 'running' ? (job.steps - job.step) * last.reduce((a, b) => a + b) / last.length / 1000 : NaN;
  };
  const newest = () => checkpoints.length ? checkpoints.reduce((a, b) => Date.parse(b.time) >= Date.parse(a.time) ? b : a) : null;
  const layout = () => {
    const plan = job.attempts.length ? job.attempts[job.attempts.length - 1].plan : null;
    if (!plan) return null;
    const axes = ['tp', 'cp', 'dp', 'pp', 'ep'].filter((a) => plan[a] > 1).map((a) => `${a} ${plan[a]}`);
    return [axes.join(' × ') || 'one rank', plan.zero ? `zero ${plan.zero}` : '', plan.precision || ''].filter(Boolean).join(', ');
  };
  const factList = () => {
    const left = remaining(), checkpoint = newest(), best = checkpoints.find((c) => c.best && c.val_loss !== null);
    return [
      ['Step', `${number(job.step)} of ${number(job.steps)}`],
      ['Loss', job.loss === null ? null : job.loss.toFixed(4)],
      ['Tokens per second', job.tokens_per_s === null ? null : curves.short(job.tokens_per_s)],
      ['Utilization (MFU)', job.mfu === null ? null : `${(100 * job.mfu).toFixed(1)}%`],
      ['Time left', Number.isFinite(left) ? span(left) : null],
      ['Expected start', job.expected_start_at ? startOf(job) : null],
      ['Newest checkpoint', checkpoint ? `step ${number(checkpoint.step)}, ${since(checkpoint.time)} ago` : null],
      ['Best checkpoint', best ? `step ${number(best.step)}, ${best.val_loss.toFixed(4)}` : null],
      ['Devices', `${job.devices}${job.nodes.length ? ` on ${job.nodes.slice(0, 4).join(', ')}${job.nodes.length > 4 ? ` and ${job.nodes.length - 4} more` : ''}` : ''}`],
      ['Layout', layout()],
      ['Priority', job.priority ? job.priority : null],
      ['Restarts', job.restarts ? job.restarts : null],
      ['Submitted', clock(job.submitted_at)],
      [job.ended_at ? 'Ran for' : 'Running since', job.started_at ? job.ended_at ? span((Date.parse(job.ended_at) - Date.parse(job.started_at)) / 1000) : clock(job.started_at) : null],
    ].filter(([, value]) => value !== null);
  };
  const showWhy = () => {
    const waits = ['queued', 'running', 'stopping'].includes(job.state);
    why.hidden = !job.reason;
    set(why, 'class', job.state === 'failed' ? 'callout bad' : 'callout');
    const words = job.blockers.length > 1 ? `All that it waits for: ${job.blockers.map((b) => b.replaceAll('_', ' ')).join(', ')}.` : '';
    why.replaceChildren(el('h3', {}, job.state === 'failed' ? 'Why it failed' : job.state === 'queued' ? 'Why it waits' : waits ? 'What is wrong' : 'How it ended'), el('p', {}, job.reason), ...(words ? [el('p', {class: 'small'}, words)] : []));
  };
  /* Shows which rank hung, where, and which ranks wait for it: from the last attempt that ended by a
   * hang, and from hang and straggler events. */
  const showEvidence = () => {
    const ends = job.attempts.filter((a) => a.end && a.end.cause === 'hang');
    const tells = list.filter((e) => e.kind === 'hang' || e.kind === 'straggler');
    const end = ends[ends.length - 1];
    evidence.hidden = !end && !tells.length;
    if (evidence.hidden) return;
    const lines = [];
    if (end) lines.push(`attempt ${end.attempt}${end.end.rank !== null ? `, rank ${end.end.rank}` : ''}${end.end.node ? ` on ${end.end.node}` : ''}: ${end.end.message}`);
    for (const e of tells.slice(-5)) if (!end || e.message !== end.end.message) lines.push(`${clock(e.time)}  ${e.message}`);
    evidence.replaceChildren(el('h3', {}, end ? 'A hang, and its evidence' : 'A rank that holds up the others'), el('pre', {}, lines.join('\n')));
  };
  const showAttempts = () => {
    attemptPart.hidden = !job.attempts.length;
    keyed(attempts.body, [...job.attempts].reverse(), (a) => a.attempt,
      () => el('tr', {}, el('td', {'data-label': 'attempt'}), el('td', {}, el('span', {class: 'state'})), el('td', {class: 'number', 'data-label': 'ranks'}), el('td', {class: 'number', 'data-label': 'from step'}), el('td', {class: 'when'}), el('td', {class: 'message'})),
      (row, a) => {
        const c = row.children;
        put(c[0], a.attempt);
        stateText(c[1].firstChild, a.end ? EVIDENCE.has(a.end.cause) ? 'failed' : a.end.cause : a.state, a.end ? a.end.cause.replaceAll('_', ' ') : a.state);
        put(c[2], a.plan ? a.plan.ranks.length : 0);
        put(c[3], a.base_checkpoint ? number(a.base_checkpoint.step) : 0);
        put(c[4], clock(a.created_at));
        put(c[5], a.end ? `${a.end.rank !== null ? `rank ${a.end.rank} on ${a.end.node}: ` : ''}${a.end.message}` : '');
      });
  };
  return {
    title: `Job ${id}`,
    wants: (change) => change.all || change.cluster || change.jobs.includes(Number(id)),
    async load() {
      const [jobs, made, eventList, checkpointList] = await Promise.all([
        get(`/api/v1/jobs/${id}`), get(`/api/v1/jobs/${id}/curve?buckets=512`), get(`/api/v1/jobs/${id}/events?limit=200`), get(`/api/v1/jobs/${id}/checkpoints`).catch((failure) => {
          if (failure.status === 403) return {items: []}; /* a user who may see a job may lack the right to see its files */
          throw failure;
        })]);
      job = jobs.items[0];
      curve = made;
      list = eventList.items;
      checkpoints = checkpointList.items;
      if (!curve.complete) refresh(); /* a long history is shown before all of it is read */
    },
    show() {
      put(name, job.name);
      document.title = `${job.name}, Heddle`;
      stateText(state, job.state, job.held && job.state === 'queued' ? 'held' : job.state);
      put(sub, `Job ${job.job} of ${people(job.owner)} in queue ${job.queue}`);
      showWhy();
      showEvidence();
      keyed(facts, factList(), ([title]) => title, ([title]) => el('div', {class: title === 'Layout' ? 'wide' : null}, el('dt', {}, title), el('dd')), (node, [, value]) => put(node.lastChild, value));
      plots.hidden = !curve.first_steps.length;
      const dots = curve.validations;
      put(legend, '');
      if (curve.bucket_steps > 1 || dots.length)
        legend.append(...curves.setsOf(dots).flatMap((set, i) => [el('i', {class: `set${i % 6}`}), `validation${set ? ` ${set} ` : ''}`]), curve.bucket_steps > 1 ? `${dots.length ? '; ' : ''}band: lowest to highest of ${number(curve.bucket_steps)} steps` : '');
      for (const c of charts) c.chart.update(curve, c.metric, c.metric === 'loss' ? dots : []);
      const scores = (curve.scores || []).map((s) => ({step: s.step, loss: s.score, set: s.set}));
      scoreChart.update(curves.empty(curve, 'scores'), 'scores', scores);
      showAttempts();
      eventPart.hidden = !list.length;
      events.show([...list].reverse());
    },
  };
};

/* ---- nodes and events ---- */

const nodesView = (main) => {
  const t = table([['Node'], ['State'], ['Devices'], ['Seen', true]], 'Nodes');
  const empty = el('p', {class: 'empty', hidden: true}, 'No nodes yet. Start one with: heddled --controller ADDR --state-dir DIR');
  const count = el('small');
  main.append(el('section', {}, el('div', {class: 'bar'}, el('h1', {}, 'Nodes'), count), t.node, empty));
  let nodes = [];
  const kinds = (node) => {
    const groups = new Map();
    for (const d of node.devices) {
      const key = `${d.name || d.kind}${d.memory_bytes ? `, ${bytes(d.memory_bytes)}` : ''}${d.kind === 'cpu' && d.threads ? `, ${plural(d.threads, 'thread')}` : ''}`;
      groups.set(key, (groups.get(key) || 0) + 1);
    }
    return [...groups].map(([text, n]) => `${n} × ${text}`).join('; ');
  };
  const device = (d) => {
    const label = d.problem ? `device ${d.index}: ${d.problem}` : d.job ? `device ${d.index}: job ${d.job}` : d.held ? `device ${d.index}: another job` : `device ${d.index}: free`;
    if (d.job) return el('a', {class: d.problem ? 'device broken' : 'device', href: `#/jobs/${d.job}`, title: label, 'aria-label': label}, String(d.job));
    return el('span', {class: d.problem ? 'device broken' : 'device', title: label}, d.problem ? '!' : d.held ? '?' : '·', el('span', {class: 'skip'}, label));
  };
  return {
    title: 'Nodes',
    wants: () => true,
    async load() { nodes = (await get('/api/v1/nodes')).items; },
    show() {
      empty.hidden = nodes.length > 0;
      t.node.hidden = !nodes.length;
      put(count, plural(nodes.length, 'node'));
      keyed(t.body, nodes, (n) => n.name,
        () => el('tr', {}, el('td', {class: 'name'}, el('span'), el('span', {class: 'why'}), el('span', {class: 'why bad'})), el('td', {}, el('span', {class: 'state'})), el('td', {}, el('div', {class: 'devices'})), el('td', {class: 'number', 'data-label': 'seen'})),
        (row, n) => {
          const [name, about, why] = row.firstChild.children;
          put(name, n.name);
          put(about, kinds(n));
          const broken = n.devices.filter((d) => d.problem);
          put(why, n.reason && n.reason !== `is ${n.state}` ? n.reason : n.jobs_dir_problem || (broken.length ? `device ${broken[0].index}: ${broken[0].problem}${broken.length > 1 ? ` (and ${broken.length - 1} more)` : ''}` : ''));
          why.hidden = !why.textContent;
          stateText(row.children[1].firstChild, n.state);
          const box = row.children[2].firstChild, mark = n.devices.map((d) => `${d.index}:${d.job}:${d.held}:${d.problem}`).join();
          if (box.dataset.mark !== mark) {
            box.dataset.mark = mark;
            box.replaceChildren(...n.devices.map(device));
          }
          put(row.children[3], `${since(n.seen_at)} ago`);
        });
    },
  };
};

const eventsView = (main) => {
  const t = eventTable('Events of the cluster');
  const empty = el('p', {class: 'empty', hidden: true}, 'No events yet.');
  let list = [];
  main.append(el('section', {}, el('div', {class: 'bar'}, el('h1', {}, 'Events'), el('small', {}, 'of nodes and the controller, newest first')), t.node, empty));
  return {
    title: 'Events',
    wants: (change) => change.cluster,
    async load() { list = (await get('/api/v1/events?limit=200')).items; },
    show() {
      empty.hidden = list.length > 0;
      t.node.hidden = !list.length;
      t.show([...list].reverse());
    },
  };
};

/* ---- the page ---- */

const notice = (text) => {
  $('notice').hidden = !text;
  put($('notice'), text);
};
const live = (state) => {
  set($('live'), 'data-state', state);
  put($('live'), state === 'lost' ? 'not connected' : state);
};

let view = null, loading = false, again = false, timer = 0, loaded = 0;

const showServer = (server) => {
  const {jobs, nodes, devices} = server;
  clockAhead = Date.parse(server.time) - Date.now();
  put($('build'), `Heddle ${server.build}`);
  put($('summary'), [`${number(jobs.running)} running`, `${number(jobs.queued)} waiting`, `${number(nodes.up)} of ${plural(nodes.all, 'node')}`, `${number(devices.held)} of ${plural(devices.all, 'device')} held`].join(', '));
  if (!server.writable) notice('Running jobs go on, but ' + server.trouble);
  if (view.title !== `Job ${view.id}`) document.title = `${view.title}: ${jobs.running} running, Heddle`;
};

/* Loads the view and shows it; a request during a load causes one more load after it. */
const refresh = async () => {
  clearTimeout(timer);
  timer = 0;
  if (loading) { again = true; return; }
  loading = true;
  const mine = view;
  try {
    const [server] = await Promise.all([get('/api/v1/server'), mine.load()]);
    if (mine === view) {
      notice('');
      mine.show();
      showServer(server);
      $('view').dataset.loaded = ++loaded;
      if (loaded === 1) $('view').dataset.liveMs = Math.round(performance.now()); /* ms since the navigation began */
    }
  } catch (failure) {
    if (mine === view) notice(failure.status ? failure.message : 'The controller does not answer. This page tries again.');
  }
  loading = false;
  if (again || mine !== view) {
    again = false;
    soon(mine === view ? 200 : 0);
  }
};
const soon = (ms) => {
  if (!timer) timer = setTimeout(refresh, ms);
};

const open = () => {
  const path = location.hash.replace(/^#/, '') || '/';
  const job = path.match(/^\/jobs\/(\d+)$/);
  const main = $('view');
  main.replaceChildren();
  delete main.dataset.loaded;
  notice('');
  view = job ? jobView(main, job[1]) : path === '/nodes' ? nodesView(main) : path === '/events' ? eventsView(main) : jobsView(main);
  view.id = job ? job[1] : null;
  const name = job ? 'jobs' : path === '/nodes' ? 'nodes' : path === '/events' ? 'events' : 'jobs';
  for (const link of document.querySelectorAll('nav a')) set(link, 'aria-current', link.dataset.view === name ? 'page' : null);
  document.title = `${view.title}, Heddle`;
  scrollTo(0, 0);
  refresh();
};

/* Reads the stream, in which each line reports a change; reconnects with growing pauses. */
const follow = async () => {
  for (let pause = 500;;) {
    let ended = false;
    try {
      const answer = await request('/api/v1/stream');
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const {value, done} = await reader.read();
        if (done) { ended = true; break; }
        const lines = (rest + value).split('\n');
        rest = lines.pop();
        for (const line of lines) {
          if (!line) continue;
          const change = JSON.parse(line);
          live('live');
          if (change.type === 'hello' && pause > 500) soon(0); /* loads changes that were missed while disconnected */
          if (change.type === 'changed' && view.wants(change)) soon(700);
          pause = 500;
        }
      }
    } catch { /* live() shows it */ }
    live(ended ? 'connecting' : 'lost');
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(10000, pause * 2);
  }
};

/* ---- keys ---- */

const move = (by) => {
  const rows = [...document.querySelectorAll('a.row, a.device')].filter((a) => a.offsetParent);
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))].focus();
};

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, dialog')) return;
  const plot = event.target.closest('svg.plot');
  const actions = {
    j: () => move(1), k: () => move(-1), ArrowDown: plot ? null : () => move(1), ArrowUp: plot ? null : () => move(-1),
    1: () => { location.hash = '#/'; }, 2: () => { location.hash = '#/nodes'; }, 3: () => { location.hash = '#/events'; },
    Escape: () => { if (view.id) location.hash = '#/'; },
    '/': () => { const filter = $('filter'); if (filter) filter.focus(); },
  };
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

addEventListener('hashchange', open);
setInterval(() => { if (!document.hidden) soon(0); }, 15000); /* ages must grow even without changes */
open();
follow();
