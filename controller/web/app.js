/* app: the dashboard. It only reads: GET /api/v1/..., whose objects are those of `heddle -o json`.
 *
 * A view is a function that builds its elements once and returns {title, wants, load, show}: load
 * fetches data, show writes it into the elements, wants decides whether a change concerns the view.
 * The stream reports changes; the view is then reloaded, at most once a second. */
'use strict';

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
  const job = path.match(/^\/jobs\/(\d+)$/), several = path.match(/^\/compare\/(\d+(?:,\d+)*)$/);
  const main = $('view');
  main.replaceChildren();
  delete main.dataset.loaded;
  notice('');
  view = job ? jobView(main, job[1]) : several ? compareView(main, [...new Set(several[1].split(',').map(Number))].slice(0, COMPARED_MAX)) : path === '/nodes' ? nodesView(main) : path === '/events' ? eventsView(main) : jobsView(main);
  view.id = job ? job[1] : null;
  view.isInner = Boolean(job || several);
  const name = job || several ? 'jobs' : path === '/nodes' ? 'nodes' : path === '/events' ? 'events' : 'jobs';
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
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input:not([type=checkbox]), select, dialog')) return;
  const plot = event.target.closest('svg.plot');
  const actions = {
    j: () => move(1), k: () => move(-1), ArrowDown: plot ? null : () => move(1), ArrowUp: plot ? null : () => move(-1),
    1: () => { location.hash = '#/'; }, 2: () => { location.hash = '#/nodes'; }, 3: () => { location.hash = '#/events'; },
    Escape: () => { if (view.isInner) location.hash = '#/'; },
    x: () => { const row = document.activeElement.closest('tr'), box = row && row.querySelector('.choose'); if (box) box.click(); },
    c: () => { const link = document.querySelector('.comparison a[href]'); if (link) link.click(); },
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
