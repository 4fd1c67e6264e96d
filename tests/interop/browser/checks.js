/* checks: what must hold of the dashboard, in every size and scheme. Evaluated in the page by
 * browser.c, which puts `const jobs = {live, long, hung}` before it. */
'use strict';

const wait = async (what, test, ms = 10000) => {
  for (const end = Date.now() + ms; Date.now() < end; await new Promise((r) => setTimeout(r, 20)))
    if (await test()) return '';
  return `${what} did not come about within ${ms} ms`;
};
const all = (selector) => [...document.querySelectorAll(selector)].filter((n) => n.getClientRects().length);
const one = (selector) => document.querySelector(selector);
const text = (selector) => { const n = one(selector); return n ? n.textContent : ''; };
const press = async (...keys) => {
  for (const key of keys) {
    pressKey(key);
    await new Promise((r) => setTimeout(r, 60));
  }
};
const say = (ok, what) => ok ? '' : what;
const row = (job) => all('tr.link').find((r) => r.querySelector('a.row').hash === `#/jobs/${job}`);
const figure = (metric) => one(`figure[data-metric="${metric}"]`);
const back = async (hash) => {
  location.hash = hash;
  return wait(`the view ${hash}`, () => one('#view').dataset.loaded);
};

/* ---- colours: WCAG 2.1, relative luminance and contrast ---- */

const colour = (css) => {
  const canvas = document.createElement('canvas').getContext('2d');
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = css;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return {r, g, b, a: a / 255};
};
const luminance = ({r, g, b}) => {
  const [x, y, z] = [r, g, b].map((c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const c = colour(getComputedStyle(node).backgroundColor);
    if (c.a > 0.99) return c;
  }
  return {r: 255, g: 255, b: 255};
};
const contrast = (a, b) => {
  const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05);
};
const contrasts = () => {
  const seen = new Set();
  for (const node of all('body *')) {
    if (![...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const style = getComputedStyle(node);
    const ink = node.closest('svg') ? style.fill : style.color;
    const under = getComputedStyle(node).backgroundColor;
    const key = `${ink} ${under} ${node.className}`;
    if (seen.has(key)) continue;
    seen.add(key);
    const ratio = contrast(colour(ink), ground(node));
    if (ratio < 4.5) return `"${node.textContent.trim().slice(0, 30)}" has a contrast of ${ratio.toFixed(2)}, not 4.5`;
  }
  return '';
};
const fits = () => say(document.documentElement.scrollWidth <= innerWidth + 1, `the page is ${document.documentElement.scrollWidth} px wide in a window of ${innerWidth}`);
const named = () => {
  const bare = all('a, button, input, select').find((n) => !(n.textContent.trim() || n.getAttribute('aria-label') || (n.labels && n.labels.length)));
  return say(!bare, `${bare && bare.outerHTML.slice(0, 80)} has no name`);
};

const checks = [
  /* ---- the list of jobs ---- */
  ['jobs', 'jobs_list_names_the_running_job', async () => wait('the live job', () => row(jobs.live) && row(jobs.live).textContent.includes('live-job'))],
  ['jobs', 'jobs_list_is_live_soon', async () => {
    const ms = Number(one('#view').dataset.liveMs);
    return say(ms > 0 && ms < 10000, `data came ${ms} ms after the start`); /* a bound for busy machines; build/dev/bench/page_load has the figure */
  }],
  ['jobs', 'jobs_list_tells_why_a_job_waits', async () => wait('a reason', () => all('td.message').some((n) => /needs 64 .*devices/.test(n.textContent)))],
  ['jobs', 'jobs_list_tells_why_a_job_failed', async () => say(row(jobs.hung) && /has hung/.test(row(jobs.hung).textContent), 'the hung job shows no reason')],
  ['jobs', 'jobs_list_separates_running_waiting_ended', async () => {
    const heads = all('section h2').map((h) => h.textContent).join(), wide = matchMedia('(min-width: 100rem)').matches;
    return say(heads === (wide ? 'Running,Ended,Waiting' : 'Running,Waiting,Ended'), heads);
  }],
  ['jobs', 'jobs_list_counts_agree_with_the_summary', async () => wait('the summary', () => /^1 running, 2 waiting/.test(text('#summary')))],
  ['jobs', 'jobs_list_updates_by_itself', async () => {
    const step = () => row(jobs.live).querySelector('.progress-cell span').textContent;
    const first = step();
    return wait('a later step', () => step() !== first);
  }],
  ['jobs', 'jobs_list_draws_a_spark_of_the_loss', async () => wait('a curve', () => row(jobs.live).querySelector('.spark .trace'))],
  ['jobs', 'jobs_list_keeps_the_focus_through_updates', async () => {
    const link = row(jobs.live).querySelector('a.row');
    link.focus();
    const seen = one('#view').dataset.loaded;
    const problem = await wait('an update', () => one('#view').dataset.loaded !== seen);
    return problem || say(document.activeElement === link, 'the focus has moved');
  }],
  ['jobs', 'jobs_list_filters', async () => {
    const filter = one('#filter');
    filter.value = 'mixtral';
    filter.dispatchEvent(new Event('input'));
    const left = all('tr.link').map((r) => r.querySelector('a.row').textContent);
    filter.value = '';
    filter.dispatchEvent(new Event('input'));
    return say(left.length === 1 && left[0] === 'mixtral-ablation-router-z', left.join());
  }],
  ['jobs', 'jobs_list_says_when_nothing_matches', async () => {
    const filter = one('#filter');
    filter.value = 'no such job';
    filter.dispatchEvent(new Event('input'));
    const said = all('.empty').map((n) => n.textContent).join();
    filter.value = '';
    filter.dispatchEvent(new Event('input'));
    return say(/No job matches/.test(said), said);
  }],
  ['jobs', 'jobs_keys_move_and_open', async () => {
    document.activeElement.blur();
    await press('j');
    const first = document.activeElement;
    if (!first.matches('a.row')) return 'j did not move to a row';
    await press('j', 'k');
    if (document.activeElement !== first) return 'j and k did not come back';
    const hash = first.hash;
    await press('Enter');
    const problem = await wait('the job', () => location.hash === hash);
    await press('Escape');
    return problem || await wait('the list', () => location.hash === '#/') || await back('#/');
  }],
  ['jobs', 'jobs_keys_change_the_view', async () => {
    await press('2');
    let problem = await wait('nodes', () => location.hash === '#/nodes');
    await press('3');
    problem = problem || await wait('events', () => location.hash === '#/events');
    await press('1');
    return problem || await wait('jobs', () => location.hash === '#/') || await back('#/');
  }],
  ['jobs', 'jobs_slash_goes_to_the_filter', async () => {
    await press('/');
    const there = document.activeElement === one('#filter');
    await press('Escape');
    return say(there && document.activeElement !== one('#filter'), 'the filter had no focus, or kept it');
  }],
  ['jobs', 'jobs_fit_the_window', async () => fits()],
  ['jobs', 'jobs_have_contrast', async () => contrasts()],
  ['jobs', 'jobs_controls_have_names', async () => named()],
  ['jobs', 'jobs_focus_is_visible', async () => {
    await press('Tab', 'Tab');
    const style = getComputedStyle(document.activeElement);
    return say(style.outlineStyle === 'solid' && parseFloat(style.outlineWidth) >= 2, `outline: ${style.outline}`);
  }],
  ['jobs', 'page_says_that_it_is_live', async () => wait('the stream', () => one('#live').dataset.state === 'live' && text('#live') === 'live')],
  ['jobs', 'page_forbids_code_from_elsewhere', async () => {
    const policy = (await fetch('/')).headers.get('content-security-policy') || '';
    return say(/default-src 'none'/.test(policy) && !/unsafe/.test(policy), policy);
  }],
  /* ---- a job that runs ---- */
  ['live', 'live_job_has_facts', async () => wait('facts', () => ['Step', 'Loss', 'Tokens per second', 'Devices', 'Layout'].every((f) => all('dt').some((d) => d.textContent === f)))],
  ['live', 'live_job_has_a_curve_of_the_loss', async () => wait('a curve', () => figure('loss') && figure('loss').querySelector('.trace') && figure('loss').querySelector('.trace').getAttribute('d').length > 40)],
  ['live', 'live_curve_grows', async () => {
    const path = () => figure('loss').querySelector('.trace').getAttribute('d');
    const first = path();
    return wait('a longer curve', () => path() !== first);
  }],
  ['live', 'live_job_counts_up', async () => {
    const step = () => all('dt').find((d) => d.textContent === 'Step').nextSibling.textContent;
    const first = step();
    return wait('a later step', () => step() !== first);
  }],
  ['live', 'live_job_lists_attempts_and_events', async () => say(all('table[aria-label="Attempts"] tbody tr').length === 1 && all('table[aria-label="Events of the job"] tbody tr').length >= 2, 'attempts or events are missing')],
  ['live', 'live_job_shows_its_log_and_follows_it', async () => {
    const log = () => text('pre.log');
    const problem = await wait('the log', () => /step \d/.test(log()));
    const first = log().length;
    return problem || wait('later lines', () => log().length > first);
  }],
  ['live', 'live_job_shows_its_file', async () => {
    const press = (word) => all('.controls button').find((b) => b.textContent === word).click();
    if (!/train: \{steps: 200000/.test(text('pre.file'))) return text('pre.file').slice(0, 200);
    press('All keys');
    if (!/\n {2}steps: 200000/.test(text('pre.file'))) return text('pre.file').slice(0, 200);
    press('Resolved');
    const problem = await wait('the resolved job', () => /train\.steps/.test(text('pre.file')));
    press('As given');
    return problem;
  }],
  ['live', 'live_charts_are_read_by_keys', async () => {
    const plot = figure('loss').querySelector('svg');
    plot.focus();
    await press('Home', 'ArrowRight');
    const said = figure('loss').querySelector('figcaption span').textContent;
    return say(/^step \d/.test(said) && plot.querySelector('.cursor'), said);
  }],
  ['live', 'live_job_fits_the_window', async () => fits()],
  ['live', 'live_job_has_contrast', async () => contrasts()],
  ['live', 'title_names_the_job', async () => say(/live-job/.test(document.title), document.title)],
  /* ---- a job of a million steps ---- */
  ['long', 'long_curve_is_complete', async () => wait('the whole curve', async () => (await (await fetch(`/api/v1/jobs/${jobs.long}/curve`)).json()).complete, 60000)],
  ['long', 'long_curve_has_every_step', async () => {
    const curve = await (await fetch(`/api/v1/jobs/${jobs.long}/curve`)).json();
    return say(curve.steps === curve.last_step && curve.steps >= 40 && curve.first_steps.length <= 512, `${curve.steps} of ${curve.last_step} steps in ${curve.first_steps.length} buckets`);
  }],
  ['long', 'long_curve_keeps_the_spike_and_the_dip', async () => {
    const curve = await (await fetch(`/api/v1/jobs/${jobs.long}/curve?buckets=64`)).json();
    const loss = curve.series.find((s) => s.name === 'loss');
    return say(Math.max(...loss.max) === 9.5 && Math.min(...loss.min) === 0.5, `${Math.min(...loss.min)} to ${Math.max(...loss.max)}`);
  }],
  ['long', 'long_curve_draws_the_spike', async () => wait('a band up to the spike', () => {
    const band = figure('loss').querySelector('.band');
    if (!band) return false;
    const box = band.getBBox(), plot = figure('loss').querySelector('svg').viewBox.baseVal;
    return box.y < 26 && box.height > 0.8 * (plot.height - 32);
  })],
  ['long', 'outliers_are_marked_or_drawn', async () => {
    /* 200 losses of 2 to 3, and one of ten million at step 20: a chart that shows it shows only it */
    const last = [...Array(200).keys()].map((i) => i === 20 ? 1e7 : 2 + (i % 10) / 10);
    const made = document.body.appendChild(document.createElement('figure'));
    const chart = curves.chart(made, 'made', 200, (v) => String(v));
    const run = {curve: {first_steps: last.map((_, i) => i + 1), bucket_steps: 1, last_step: 200, series: [{name: 'loss', min: last, max: last, last}]}};
    const tops = () => [...made.querySelectorAll('text')].map((t) => t.textContent).join(' ');
    chart.update([run], 'loss', true);
    const marked = made.querySelectorAll('.outside').length === 1 && /10000000 at step 21/.test(made.querySelector('.outside').textContent) && !/0000/.test(tops());
    chart.update([run], 'loss', false);
    const full = !made.querySelector('.outside') && /0000/.test(tops());
    made.remove();
    return say(marked && full, `marked ${marked}, full ${full}`);
  }],
  ['long', 'long_curve_has_validations', async () => say(figure('loss').querySelectorAll('.dot').length >= 39, `${figure('loss').querySelectorAll('.dot').length} dots`)],
  ['long', 'long_curve_says_what_the_band_is', async () => say(/lowest to highest of [\d,]+ steps/.test(text('.legend')), text('.legend'))],
  ['long', 'long_job_fits_the_window', async () => fits()],
  ['long', 'long_job_has_contrast', async () => contrasts()],
  /* ---- a hang ---- */
  ['hung', 'hang_shows_its_evidence', async () => say(all('.callout pre').some((n) => /rank 3 on gpu-03/.test(n.textContent) && /all_reduce 118 of dp/.test(n.textContent)), 'no evidence')],
  ['hung', 'messages_are_text_not_markup', async () => say(all('td.message').some((n) => n.textContent.includes('<b>bold</b>&amp;')) && !one('td b'), 'a message was taken for markup')],
  ['hung', 'hang_fits_the_window', async () => fits()],
  ['hung', 'hang_has_contrast', async () => contrasts()],
  ['hung', 'hang_is_said_once_in_words', async () => say(all('.callout h3').map((n) => n.textContent).join() === 'Why it failed,A hang, and its evidence', all('.callout h3').map((n) => n.textContent).join())],
  /* ---- several jobs ---- */
  ['compare', 'compared_jobs_share_a_chart', async () => wait('a line for each', () => figure('loss').querySelectorAll('.trace').length === 3)],
  ['compare', 'compared_jobs_tell_what_differs', async () => wait('keys', () => all('.keys-table td.kind').some((n) => n.textContent === 'train.steps'))],
  ['compare', 'compared_jobs_fit_the_window', async () => fits()],
  ['compare', 'compared_jobs_have_contrast', async () => contrasts()],
  ['compare', 'jobs_are_chosen_by_key', async () => {
    const problem = await back('#/') || await wait('the list', () => one('#filter') && row(jobs.live) && row(jobs.long));
    if (problem) return problem;
    row(jobs.live).querySelector('a.row').focus();
    await press('x');
    row(jobs.long).querySelector('a.row').focus();
    await press('x', 'c');
    return await wait('the comparison', () => /^#\/compare\/\d+,\d+$/.test(location.hash)) || back('#/');
  }],
  /* ---- nodes and events ---- */
  ['nodes', 'nodes_show_state_and_devices', async () => wait('n1', () => all('tbody tr').some((r) => /n1/.test(r.textContent) && /ready/.test(r.textContent)))],
  ['nodes', 'nodes_link_devices_to_jobs', async () => say(all('a.device').some((a) => a.hash === `#/jobs/${jobs.live}`), 'no device leads to the live job')],
  ['nodes', 'nodes_that_are_lost_stand_out', async () => say(all('.state[data-state="lost"]').length === 4, `${all('.state[data-state="lost"]').length} of 4`)],
  ['nodes', 'nodes_fit_the_window', async () => fits()],
  ['nodes', 'nodes_have_contrast', async () => contrasts()],
  ['events', 'events_are_listed_newest_first', async () => wait('events', () => { const rows = all('tbody tr'); return rows.length >= 2 && /node/.test(rows[0].textContent); })],
  ['events', 'events_fit_the_window', async () => fits()],
  ['events', 'events_have_contrast', async () => contrasts()],
];

const checked = {
  list: () => checks.map(([view, name]) => `${view} ${name}\n`).join(''),
  async run(name) { return checks.find((c) => c[1] === name)[2](); },
  async ready() {
    const problem = await wait('the first data', () => one('#view') && one('#view').dataset.loaded, 30000);
    if (problem) throw new Error(problem);
    await new Promise((r) => setTimeout(r, 250)); /* fonts, curves */
    return 'ready';
  },
};
globalThis.checked = checked;
'loaded';
