/* job: one job, with its curves, its log and its job file. */
'use strict';

/* ---- log ---- */

const LOG_BYTES = 64 * 1024, LOG_CHARS_MAX = 1 << 20, LOG_MS = 2000;

/* Returns text of a log without colours, and of lines that a program wrote again and again (progress
 * bars) the last. */
const plainLog = (text) => text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, '').replace(/[^\n]*\r(?!\n)/g, '').replace(/\r/g, '');

/* The log of one rank: its end, which follows the rank, and earlier parts on demand. */
const logPart = (id) => {
  const rank = el('select', {'aria-label': 'Rank'}), attempt = el('select', {'aria-label': 'Attempt'});
  const follows = el('input', {type: 'checkbox', id: 'follow', checked: true});
  const earlier = el('button', {type: 'button', hidden: true}, 'Show earlier lines');
  const note = el('p', {class: 'small', hidden: true}), text = el('pre', {class: 'log', tabindex: 0, 'aria-label': 'Log'});
  const node = el('section', {hidden: true}, el('div', {class: 'bar'}, el('h2', {}, 'Log'),
    el('span', {class: 'controls'}, attempt, rank, el('label', {for: 'follow'}, follows, ' follow'))), earlier, note, text);
  let job = null, first = 0, next = null, ended = false, loading = false, timer = 0, chosen = false;

  const say = (message) => {
    note.hidden = !message;
    put(note, message);
  };
  const path = (offset, bytes) => `/api/v1/jobs/${id}/log?attempt=${attempt.value}&rank=${rank.value}&offset=${offset}&bytes=${bytes}`;
  const append = (more) => {
    const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    if (more) text.append(more);
    while (text.childNodes.length > 1 && text.textContent.length > LOG_CHARS_MAX) { /* a tab that is open for days */
      first += new TextEncoder().encode(text.firstChild.data).length;
      text.firstChild.remove();
    }
    if (follows.checked && atEnd) text.scrollTop = text.scrollHeight;
  };
  const later = () => {
    clearTimeout(timer);
    if (follows.checked && !ended && node.isConnected) timer = setTimeout(read, document.hidden ? 5 * LOG_MS : LOG_MS);
  };
  /* Reads what follows the text that is shown; the end of the log if there is none. */
  const read = async () => {
    if (loading || !node.isConnected || !rank.value) return;
    loading = true;
    const from = `${attempt.value} ${rank.value}`, begins = next === null;
    try {
      const answer = await get(path(begins ? -LOG_BYTES : next, begins ? LOG_BYTES : 4 * LOG_BYTES));
      if (from === `${attempt.value} ${rank.value}`) {
        let more = answer.text;
        if (begins && answer.offset_bytes > 0) { /* the piece begins inside a line */
          const cut = more.indexOf('\n') + 1;
          first = answer.offset_bytes + new TextEncoder().encode(more.slice(0, cut)).length;
          more = more.slice(cut);
        } else if (begins) {
          first = answer.offset_bytes;
        }
        next = answer.next_offset_bytes;
        ended = answer.ended && !answer.text;
        say(answer.note || (begins && !more ? 'Nothing is in this log yet.' : ''));
        append(plainLog(more));
        earlier.hidden = first <= 0;
      }
    } catch (failure) {
      say(failure.message);
      if (failure.status === 403 || failure.status === 404) ended = true;
    }
    loading = false;
    if (from !== `${attempt.value} ${rank.value}`) read();
    else later();
  };
  const restart = () => {
    text.replaceChildren();
    first = 0;
    next = null;
    ended = false;
    earlier.hidden = true;
    say('');
    read();
  };
  earlier.addEventListener('click', async () => {
    const offset = Math.max(0, first - LOG_BYTES);
    const answer = await get(path(offset, first - offset)).catch((failure) => { say(failure.message); return null; });
    if (!answer) return;
    const cut = answer.offset_bytes > 0 ? answer.text.indexOf('\n') + 1 : 0;
    const height = text.scrollHeight;
    text.prepend(plainLog(answer.text.slice(cut)));
    text.scrollTop += text.scrollHeight - height;
    first = answer.offset_bytes + new TextEncoder().encode(answer.text.slice(0, cut)).length;
    earlier.hidden = first <= 0;
  });
  const options = (select, values, words) => {
    keyed(select, values, (v) => v, (v) => el('option', {value: v}), (option, v) => put(option, words(v)));
  };
  const ranksOf = (number) => {
    const a = job.attempts.find((one) => one.attempt === Number(number));
    return a && a.plan ? a.plan.ranks.length : 0;
  };
  attempt.addEventListener('change', () => { chosen = true; fill(); restart(); });
  rank.addEventListener('change', () => { chosen = true; restart(); });
  follows.addEventListener('change', () => { if (follows.checked) { text.scrollTop = text.scrollHeight; ended = false; read(); } });
  const fill = () => {
    const ranks = ranksOf(attempt.value), had = rank.value;
    options(rank, [...Array(ranks).keys()], (r) => `rank ${r}`);
    rank.value = had !== '' && Number(had) < ranks ? had : '0';
    rank.hidden = ranks < 2;
  };
  return {
    node,
    show(shown) {
      job = shown;
      const begun = job.attempts.filter((a) => a.plan && a.plan.ranks.length);
      node.hidden = !begun.length;
      if (node.hidden) return;
      const newest = begun[begun.length - 1], had = attempt.value;
      options(attempt, begun.map((a) => a.attempt).reverse(), (a) => `attempt ${a}`);
      attempt.hidden = begun.length < 2;
      if (!chosen && had !== String(newest.attempt)) {
        attempt.value = newest.attempt;
        fill();
        /* the rank that failed tells more than rank 0 */
        if (newest.end && newest.end.rank !== null && newest.end.rank < newest.plan.ranks.length) rank.value = newest.end.rank;
        restart();
      } else {
        attempt.value = had;
        fill();
        if (next === null) read();
      }
    },
  };
};

/* ---- job file ---- */

/* Returns a value of a job's spec as lines of YAML. */
const yaml = (value, indent = '') => {
  if (value === null || typeof value !== 'object') {
    if (typeof value !== 'string') return ` ${value}`;
    return / #|: |^[\s&*!|>%@`'"{}[\],?:#-]|^$|\s$|^(true|false|null|yes|no|on|off|~|[-+.\d].*)$/i.test(value) || value.includes('\n') ? ` ${JSON.stringify(value)}` : ` ${value}`;
  }
  if (Array.isArray(value)) return value.length ? value.map((v) => `\n${indent}-${v !== null && typeof v === 'object' ? yaml(v, `${indent}  `).replace(/^\n\s*/, ' ') : yaml(v)}`).join('') : ' []';
  return Object.keys(value).length ? Object.entries(value).map(([k, v]) => `\n${indent}${k}:${yaml(v, `${indent}  `)}`).join('') : ' {}';
};

/* The job file: as it was given, with all keys, and as the ranks of an attempt read it. */
const filePart = (id) => {
  const text = el('pre', {class: 'file', tabindex: 0, 'aria-label': 'Job file'});
  const tabs = el('span', {class: 'controls', role: 'group', 'aria-label': 'Form of the job file'});
  const about = el('p', {class: 'small'});
  const node = el('section', {hidden: true}, el('div', {class: 'bar'}, el('h2', {}, 'Job file'), tabs), about, text);
  let job = null, chosen = null, shown = '', resolved = {attempt: 0, text: ''};
  const forms = {
    given: ['As given', 'the file that was submitted; values of --set are comments at its end', () => job.file],
    all: ['All keys', 'with the default of every key that the file lacks; auto is decided when an attempt begins', () => job.spec && yaml(job.spec).trim()],
    resolved: ['Resolved', 'as the ranks of the newest attempt read it, in their form: without auto, and with the layout', () => job.attempts.length ? resolved.text || ' ' : null],
  };
  const load = async () => {
    const newest = job.attempts.length;
    if (!newest || resolved.attempt === newest) return;
    resolved = {attempt: newest, text: ''};
    resolved.text = await request(`/api/v1/jobs/${id}/resolved?attempt=${newest}`).then((a) => a.text()).catch((failure) => failure.message);
    draw();
  };
  const draw = () => {
    const have = Object.keys(forms).filter((f) => forms[f][2]());
    node.hidden = !have.length;
    if (node.hidden) return;
    if (!have.includes(chosen)) chosen = have[0];
    keyed(tabs, have, (f) => f, (f) => {
      const button = el('button', {type: 'button'}, forms[f][0]);
      button.addEventListener('click', () => { chosen = f; draw(); });
      return button;
    }, (button, f) => set(button, 'aria-pressed', f === chosen));
    put(about, forms[chosen][1]);
    const wanted = forms[chosen][2]();
    if (wanted !== shown) put(text, shown = wanted);
    if (chosen === 'resolved') load();
  };
  return {node, show(given) { job = given; draw(); }};
};

/* ---- one job ---- */

const EVIDENCE = new Set(['hang', 'straggler', 'rank_exit', 'node_lost', 'diverged']);

const FACT_LETTERS = 26; /* longer ones take two columns */

const jobView = (main, id) => {
  const name = el('h1'), state = el('span', {class: 'state'}), sub = el('p', {class: 'small'});
  const why = el('div', {class: 'callout', hidden: true}), evidence = el('div', {class: 'callout bad', hidden: true});
  const facts = el('dl', {class: 'facts'});
  const legend = el('small', {class: 'legend'});
  const charts = metricCharts();
  const button = scaleButton(() => showCurves());
  const scoreFigure = el('figure', {class: 'chart', hidden: true, 'data-metric': 'scores'});
  const scoreChart = curves.chart(scoreFigure, 'Scores of questions', 160, (v) => curves.short(v, 4));
  const plots = el('section', {hidden: true}, el('div', {class: 'bar'}, el('h2', {}, 'Curves'), button.node, legend), el('div', {class: 'charts'}, ...charts.map((c) => c.figure), scoreFigure));
  const attempts = table([['Attempt'], ['State'], ['Ranks', true], ['From step', true], ['Started'], ['End']], 'Attempts');
  const attemptPart = el('section', {hidden: true}, el('h2', {}, 'Attempts'), attempts.node);
  const events = eventTable('Events of the job');
  const log = logPart(id), file = filePart(id);
  const eventPart = el('section', {hidden: true}, el('h2', {}, 'Events'), events.node);
  main.append(el('section', {}, el('a', {class: 'back', href: '#/'}, '← Jobs'), el('div', {class: 'title'}, name, state), sub, why, evidence, facts),
    el('div', {class: 'columns'}, el('div', {}, plots, log.node), el('div', {}, file.node, attemptPart, eventPart)));
  let job = null, curve = null, list = [], checkpoints = [];

  const newest = () => checkpoints.length ? checkpoints.reduce((a, b) => Date.parse(b.time) >= Date.parse(a.time) ? b : a) : null;
  const layout = () => {
    const plan = job.attempts.length ? job.attempts[job.attempts.length - 1].plan : null;
    if (!plan) return null;
    const axes = ['tp', 'cp', 'dp', 'pp', 'ep'].filter((a) => plan[a] > 1).map((a) => `${a} ${plan[a]}`);
    return [axes.join(' × ') || 'one rank', plan.zero ? `zero ${plan.zero}` : '', plan.precision || ''].filter(Boolean).join(', ');
  };
  const factList = () => {
    const left = curves.left(curve, job), checkpoint = newest(), best = checkpoints.find((c) => c.best && c.val_loss !== null);
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
  const showCurves = () => {
    plots.hidden = !curve.first_steps.length;
    const dots = curve.validations;
    put(legend, '');
    if (curve.bucket_steps > 1 || dots.length)
      legend.append(...curves.setsOf(dots).flatMap((set, i) => [el('i', {class: `set${i % 6}`}), `validation${set ? ` ${set} ` : ''}`]), curve.bucket_steps > 1 ? `${dots.length ? '; ' : ''}band: lowest to highest of ${number(curve.bucket_steps)} steps` : '');
    for (const c of charts) c.chart.update([{curve, dots: c.metric === 'loss' ? dots : []}], c.metric, scale.clips);
    const scores = (curve.scores || []).map((s) => ({step: s.step, loss: s.score, set: s.set}));
    scoreChart.update([{curve: curves.empty(curve, 'scores'), dots: scores}], 'scores', scale.clips);
    button.show(charts.some((c) => c.chart.clipped()));
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
      keyed(facts, factList(), ([title]) => title, ([title]) => el('div', {}, el('dt', {}, title), el('dd')), (node, [, value]) => {
        set(node, 'class', String(value).length > FACT_LETTERS ? 'wide' : '');
        put(node.lastChild, value);
      });
      showCurves();
      log.show(job);
      file.show(job);
      showAttempts();
      eventPart.hidden = !list.length;
      events.show([...list].reverse());
    },
  };
};
