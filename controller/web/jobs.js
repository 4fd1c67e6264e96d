/* jobs: the list of jobs, and several jobs laid over each other. */
'use strict';

/* ---- jobs ---- */

/* Columns after the name, per section of the job list: [head, class, label on narrow pages]. */
const JOB_COLUMNS = {
  running: [['State'], ['Loss', 'spark-cell'], ['', 'number', 'loss'], ['Step', 'progress-cell'], ['Tokens/s', 'number', 'tokens/s'], ['Left', 'number', 'left'], ['Devices', 'number', 'devices'], ['Age', 'number', 'age']],
  waiting: [['State'], ['Why it waits', 'message'], ['Devices', 'number', 'devices'], ['Age', 'number', 'age']],
  ended: [['State'], ['Step', 'number', 'step'], ['Loss', 'number', 'loss'], ['Ended', 'number', 'ended']],
};

const COMPARED_MAX = 8;
const chosen = new Set(); /* numbers of the jobs that are chosen for a comparison */

/* Seconds that running jobs have left: by their curves, or by the steps that this page has seen. */
const pace = {
  left: new Map(), /* job -> {seconds, at}: by the curve, at that time (ms) */
  seen: new Map(), /* job -> {step, at}: first step that the page saw, of this attempt */
  of(job) {
    const known = pace.left.get(job.job), first = pace.seen.get(job.job);
    if (!first || first.attempt !== job.attempt || job.step < first.step) pace.seen.set(job.job, {attempt: job.attempt, step: job.step, at: Date.now()});
    if (known && Number.isFinite(known.seconds)) return Math.max(0, known.seconds - (Date.now() - known.at) / 1000);
    if (!first || job.step - first.step < 3) return NaN;
    return (job.steps - job.step) * (Date.now() - first.at) / 1000 / (job.step - first.step);
  },
};

const jobTable = (label, part, onChoose) => {
  const columns = JOB_COLUMNS[part];
  const t = table([['Job'], ...columns.map(([head, kind]) => [head, kind === 'number'])], label);
  /* The head of several jobs that wait for the same reason. */
  const buildHead = () => el('tr', {class: 'reason'}, el('td', {colspan: columns.length + 1}, el('span'), ' ', el('button', {type: 'button'})));
  const updateHead = (row, head) => {
    const [text, button] = row.firstChild.children;
    put(text, `${plural(head.count, 'job')}: ${head.text}`);
    button.hidden = head.count <= head.shown && !head.isOpen;
    put(button, head.isOpen ? 'Show fewer' : `Show ${number(head.count - head.shown)} more`);
    button.onclick = head.toggle;
  };
  const build = (job) => {
    if (job.head) return buildHead(job);
    const name = el('td', {class: 'name'}, el('a', {class: 'row', href: `#/jobs/${job.job}`}), el('small'), el('span', {class: 'why', hidden: true}));
    const cells = columns.map(([, kind, narrow]) => el('td', {class: kind, 'data-label': narrow}));
    cells[0].append(el('span', {class: 'state'}));
    if (onChoose) {
      const box = el('input', {type: 'checkbox', class: 'choose', 'aria-label': `Compare ${job.name}`});
      box.addEventListener('change', () => { if (box.checked) chosen.add(job.job); else chosen.delete(job.job); onChoose(); });
      name.prepend(box);
    }
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
      const left = pace.of(job);
      put(cells[5], Number.isFinite(left) ? span(left) : '');
      put(cells[6], job.devices);
      put(cells[7], since(job.submitted_at));
    },
    waiting(cells, job) {
      const start = job.expected_start_at ? `expected to start ${startOf(job)}` : '';
      put(cells[1], [job.grouped ? '' : job.reason, start].filter(Boolean).join('; '));
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
    if (job.head) { updateHead(row, job); return; }
    const [name, ...cells] = row.children;
    const [link, small, why] = [...name.children].filter((n) => n.tagName !== 'INPUT');
    if (onChoose) name.firstChild.checked = chosen.has(job.job);
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

const GROUP_MIN = 3, GROUP_SHOWN = 2; /* jobs with one reason that become a group; those of it that are shown */

/* Gathers waiting jobs that say the same: the head of a group is followed by its first jobs. */
const gather = (jobs, opened, onToggle) => {
  const groups = new Map();
  for (const job of jobs) {
    const key = job.held ? '' : job.reason;
    groups.set(key, [...(groups.get(key) || []), job]);
  }
  const rows = [];
  for (const [text, members] of groups) {
    if (!text || members.length < GROUP_MIN) { rows.push(...members); continue; }
    const isOpen = opened.has(text), shown = isOpen ? members : members.slice(0, GROUP_SHOWN);
    rows.push({head: true, job: `reason ${text}`, text, count: members.length, shown: shown.length, isOpen, toggle() { if (isOpen) opened.delete(text); else opened.add(text); onToggle(); }});
    rows.push(...shown.map((job) => ({...job, grouped: true})));
  }
  return rows;
};

const SPARKS_MAX = 12, SPARK_MS = 5000;

const jobsView = (main) => {
  const filter = el('input', {id: 'filter', type: 'search', placeholder: 'Filter by name, owner, state', 'aria-label': 'Filter jobs', autocomplete: 'off', spellcheck: 'false'});
  const choose = () => showChosen();
  const running = jobTable('Jobs that run', 'running', choose), waiting = jobTable('Jobs that wait', 'waiting'), done = jobTable('Jobs that have ended', 'ended', choose);
  const compare = el('a', {class: 'button'}), clear = el('button', {type: 'button'}, 'Clear');
  const comparison = el('p', {class: 'comparison', hidden: true}, compare, clear);
  const opened = new Set();
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
  const leftSide = el('div', {}, runs.node, ends.node), rightSide = el('div', {}, waits.node);
  const columns = el('div', {class: 'columns'}, leftSide, rightSide);
  main.append(el('section', {}, el('div', {class: 'bar'}, el('h1', {}, 'Jobs'), filter), empty), columns, comparison);
  const showChosen = () => {
    const numbers = [...chosen].sort((a, b) => a - b);
    comparison.hidden = !numbers.length;
    put(compare, numbers.length < 2 ? 'Choose one more job to compare' : numbers.length > COMPARED_MAX ? `Compare the first ${COMPARED_MAX} of ${numbers.length} jobs` : `Compare ${numbers.length} jobs`);
    set(compare, 'href', numbers.length < 2 ? null : `#/compare/${numbers.slice(0, COMPARED_MAX).join(',')}`);
  };
  clear.addEventListener('click', () => { chosen.clear(); show(); });
  const drawn = new Map();

  const matches = (job) => {
    const wanted = filter.value.trim().toLowerCase();
    return !wanted || [job.name, job.owner, job.state, job.queue, String(job.job), job.reason].some((t) => t.toLowerCase().includes(wanted));
  };
  const show = () => {
    for (const part of parts) {
      const jobs = part.jobs.filter(matches);
      part.t.show(part === waits ? gather(jobs, opened, show) : jobs);
      part.node.hidden = !jobs.length;
      put(part.count, part.next ? `the newest ${jobs.length}` : plural(jobs.length, 'job'));
      part.more.hidden = !part.next || part.limit >= 1000;
    }
    /* on narrow pages, and as reading order: running, waiting, ended */
    const side = matchMedia('(min-width: 100rem)').matches && !waits.node.hidden;
    if (side !== (waits.node.parentNode === rightSide)) (side ? rightSide : leftSide).insertBefore(waits.node, side ? null : ends.node);
    set(columns, 'class', side ? 'columns' : 'columns one');
    showChosen();
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
      if (curve) pace.left.set(job.job, {seconds: curves.left(curve, job), at: Date.now()});
      if (curve && row) curves.spark(row.querySelector('.spark'), curve, 'loss');
    }
    show(); /* with the time left */
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

/* ---- several jobs ---- */

/* Returns the keys of a job's spec with their values: "train.lr.peak" -> "0.001". */
const flatten = (value, path = '', into = new Map()) => {
  if (value !== null && typeof value === 'object' && !Array.isArray(value))
    for (const [k, v] of Object.entries(value)) flatten(v, path ? `${path}.${k}` : k, into);
  else
    into.set(path, typeof value === 'string' ? value : JSON.stringify(value));
  return into;
};

/* Jobs laid over each other: a chart for each metric, and the keys in which their job files differ. */
const compareView = (main, numbers) => {
  const charts = metricCharts();
  const button = scaleButton(() => showCharts());
  const plots = el('section', {hidden: true}, el('div', {class: 'bar'}, el('h2', {}, 'Curves'), button.node, el('small', {class: 'legend'}, 'small circles: validation')), el('div', {class: 'charts'}, ...charts.map((c) => c.figure)));
  const t = table([['Job'], ['State'], ['Step', true], ['Loss', true], ['Lowest validation', true], ['Tokens/s', true], ['Ran for', true]], 'Compared jobs');
  const heads = el('tr'), keys = el('tbody');
  const keyTable = el('table', {class: 'keys-table', 'aria-label': 'Keys that differ'}, el('thead', {}, heads), keys);
  const differ = el('section', {hidden: true}, el('h2', {}, 'What differs in their job files'), el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Keys that differ'}, keyTable));
  main.append(el('section', {}, el('a', {class: 'back', href: '#/'}, '← Jobs'), el('h1', {}, `${numbers.length} jobs compared`), t.node),
    el('div', {class: 'columns'}, el('div', {}, plots), el('div', {}, differ)));
  let runs = [], missing = '';
  const showCharts = () => {
    plots.hidden = !runs.some((r) => r.curve.first_steps.length);
    for (const c of charts)
      c.chart.update(runs.map((r, i) => ({curve: r.curve, dots: c.metric === 'loss' ? r.curve.validations : [], label: r.job.name, color: i})), c.metric, scale.clips);
    button.show(charts.some((c) => c.chart.clipped()));
  };
  const showKeys = () => {
    const specs = runs.map((r) => flatten(r.job.spec));
    const names = [...new Set(specs.flatMap((s) => [...s.keys()]))].filter((k) => k && k !== 'name' && new Set(specs.map((s) => s.get(k))).size > 1);
    differ.hidden = runs.length < 2 || !names.length || runs.some((r) => !r.job.spec);
    heads.replaceChildren(el('th', {scope: 'col'}, 'Key'), ...runs.map((r, i) => el('th', {scope: 'col', class: `run${i}`}, el('i'), String(r.job.job))));
    keyed(keys, names, (k) => k, () => el('tr', {}, el('td', {class: 'kind'})), (row, k) => {
      put(row.firstChild, k);
      row.replaceChildren(row.firstChild, ...specs.map((s) => el('td', {}, (s.get(k) ?? '–').slice(0, 120))));
    });
  };
  return {
    title: 'Comparison',
    wants: (change) => change.all || numbers.some((n) => change.jobs.includes(n)),
    async load() {
      const found = await Promise.all(numbers.map(async (n) => {
        try {
          const [jobs, curve] = await Promise.all([get(`/api/v1/jobs/${n}`), get(`/api/v1/jobs/${n}/curve?buckets=256`)]);
          return {job: jobs.items[0], curve};
        } catch (failure) {
          if (!failure.status) throw failure;
          return {failure};
        }
      }));
      runs = found.filter((f) => f.job);
      missing = found.filter((f) => f.failure).map((f) => f.failure.message).join('; ');
      if (runs.some((r) => !r.curve.complete)) refresh(); /* a long history is shown before all of it is read */
    },
    show() {
      if (missing) notice(missing);
      keyed(t.body, runs, (r) => r.job.job,
        () => el('tr', {class: 'link'}, el('td', {class: 'name'}, el('i'), el('a', {class: 'row'}), el('small')), el('td', {}, el('span', {class: 'state'})),
          ...['step', 'loss', 'validation', 'tokens/s', 'ran'].map((n) => el('td', {class: 'number', 'data-label': n}))),
        (row, r) => {
          const [name, state, ...cells] = row.children, job = r.job;
          const losses = r.curve.validations.map((v) => v.loss).filter((v) => v !== null);
          set(name, 'class', `name run${runs.indexOf(r)}`);
          put(name.children[1], job.name);
          set(name.children[1], 'href', `#/jobs/${job.job}`);
          put(name.children[2], `  ${job.job}, ${people(job.owner)}`);
          stateText(state.firstChild, job.state);
          put(cells[0], `${number(job.step)} of ${number(job.steps)}`);
          put(cells[1], job.loss === null ? '' : job.loss.toFixed(4));
          put(cells[2], losses.length ? losses.reduce((a, b) => Math.min(a, b)).toFixed(4) : '');
          put(cells[3], job.tokens_per_s === null ? '' : curves.short(job.tokens_per_s, 3));
          put(cells[4], job.started_at ? span(((job.ended_at ? Date.parse(job.ended_at) : now()) - Date.parse(job.started_at)) / 1000) : '');
        });
      showCharts();
      showKeys();
    },
  };
};
