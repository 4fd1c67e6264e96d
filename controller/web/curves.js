/* curves: draws downsampled curves (GET /api/v1/jobs/N/curve) as SVG.
 *
 * Each bucket holds the lowest, highest and newest value of its steps. The band spans lowest to
 * highest, so that a spike of one step in a million is visible; the line follows the newest. Several
 * jobs in one chart have lines only.
 *
 * A few values far from all others would flatten the rest of a curve. So the scale leaves them out,
 * and a mark at the edge says where they are; a page can show the full scale instead. */
'use strict';

const curves = (() => {
  const SVG = 'http://www.w3.org/2000/svg';
  const LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 22;
  const TAIL = 0.02;        /* part of the values at each end that may be left out of the scale */
  const FAR = 3;            /* they are left out if they are this many times the others' span away */
  const CLIP_MIN = 24;      /* fewest values of a scale that leaves some out */
  const MARK_PIXELS = 9;    /* distance within which several marks become one */

  const make = (tag, attributes, parent) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (parent) parent.append(node);
    return node;
  };

  /* Formats a number briefly: 98123 -> "98.1k", 0.00034 -> "3.4e-4". */
  const short = (value, digits = 4) => {
    if (value === null || !Number.isFinite(value)) return '–';
    const size = Math.abs(value);
    if (size === 0) return '0';
    for (const [unit, scale] of [['T', 1e12], ['G', 1e9], ['M', 1e6], ['k', 1e3]])
      if (size >= scale * 0.99995) return `${+(value / scale).toPrecision(digits)}${unit}`;
    if (size < 1e-3) return value.toExponential(1).replace('.0e', 'e').replace('e-', 'e−');
    return `${+value.toPrecision(digits)}`;
  };

  /* Returns about `count` round numbers between low and high. */
  const ticks = (low, high, count) => {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
    const list = [];
    for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step)
      list.push(Math.abs(t) < step * 1e-9 ? 0 : t);
    return list;
  };

  /* Returns {low, high, clipped}: the ends of a scale for the values; null if there are none. With
   * `clips` values far from the others may lie outside, and `clipped` tells whether some do. */
  const scaleOf = (values, clips) => {
    const sorted = values.filter((v) => v !== null && Number.isFinite(v)).sort((a, b) => a - b);
    const count = sorted.length;
    if (!count) return null;
    let low = sorted[0], high = sorted[count - 1], clipped = false;
    if (clips && count >= CLIP_MIN) {
      const left = Math.max(1, Math.round(TAIL * (count - 1)));
      const a = sorted[left], b = sorted[count - 1 - left], span = b - a;
      if (span > 0 && high - b > FAR * span) { high = b + span / 3; clipped = true; }
      if (span > 0 && a - low > FAR * span) { low = a - span / 3; clipped = true; }
    }
    if (low === high) {
      const room = Math.abs(low) * 0.05 || 1;
      return {low: low - room, high: high + room, clipped};
    }
    const room = (high - low) * 0.04;
    return {low: low >= 0 ? Math.max(0, low - room) : low - room, high: high + room, clipped};
  };

  /* Returns an SVG path "M x y L x y ..." with a gap where a value is missing. */
  const line = (xs, ys) => {
    let path = '', open = false;
    for (let i = 0; i < xs.length; i++) {
      if (ys[i] === null) { open = false; continue; }
      path += `${open ? 'L' : 'M'}${xs[i].toFixed(1)} ${ys[i].toFixed(1)}`;
      open = true;
    }
    return path;
  };

  const band = (xs, low, high) => {
    let path = '';
    for (let i = 0; i < xs.length;) {
      if (low[i] === null) { i++; continue; }
      let j = i;
      while (j < xs.length && low[j] !== null) j++;
      const up = [], down = [];
      for (let k = i; k < j; k++) {
        up.push(`${xs[k].toFixed(1)} ${high[k].toFixed(1)}`);
        down.unshift(`${xs[k].toFixed(1)} ${low[k].toFixed(1)}`);
      }
      path += `M${up.join('L')}L${down.join('L')}Z`;
      i = j;
    }
    return path;
  };

  /* Returns the names of the validation sets of dots, in their order; '' is a list without names. */
  const setsOf = (dots) => [...new Set(dots.map((d) => d.set || ''))];

  /* Returns the bucket of a curve that has the step, or the nearest one; -1: it has none. */
  const bucketAt = (curve, step) => {
    let low = 0, high = curve.first_steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (curve.first_steps[middle] <= step) low = middle + 1; else high = middle;
    }
    return low ? low - 1 : curve.first_steps.length ? 0 : -1;
  };

  let charts = 0; /* number of charts made, for names of clip paths */

  /* Builds a chart in `figure`; returns {update(runs, name, clips), clipped()}. A run is {curve, dots,
   * label, color}: dots are validations, color is the number of a colour; a chart of one run needs
   * neither label nor color. */
  const chart = (figure, title, height, format) => {
    const caption = document.createElement('figcaption');
    const head = document.createElement('h3');
    const readout = document.createElement('span');
    const clipName = `clip-${++charts}`;
    head.textContent = title;
    caption.append(head, readout);
    const svg = make('svg', {class: 'plot', height, tabindex: 0, role: 'img', 'aria-label': title});
    figure.append(caption, svg);
    /* runs: those with the metric; base: the longest of them, whose buckets the cursor points at */
    let runs = [], base = null, clips = true, clipped = false, at = -1, place = null;

    const spread = (series, i) => series.min[i] !== series.max[i] ? ` (${format(series.min[i])} to ${format(series.max[i])})` : '';
    const sayOne = () => {
      const {curve, series, dots} = base;
      const i = at >= 0 ? at : series.last.length - 1;
      if (i < 0) return '';
      const first = curve.first_steps[i], next = first + curve.bucket_steps;
      const near = at >= 0 ? dots.filter((d) => d.step >= first && d.step < next) : [];
      const losses = setsOf(near).map((set) => `${set}${set ? ' ' : ''}${format(near.find((d) => (d.set || '') === set).loss)}`);
      return at < 0 ? `${format(series.last[i])}`
        : `step ${first.toLocaleString('en')}: ${format(series.last[i])}${spread(series, i)}${losses.length ? `, validation ${losses.join(', ')}` : ''}`;
    };
    /* Returns a list of [text, color] for the runs at the cursor, or for their newest values. */
    const saySeveral = () => {
      const step = at >= 0 ? base.curve.first_steps[at] : Infinity;
      const values = runs.filter((r) => at < 0 || r.curve.last_step >= step).map((r) => [format(r.series.last[bucketAt(r.curve, step)] ?? null), r.color]);
      return at >= 0 ? [[`step ${step.toLocaleString('en')}:`, null], ...values] : values;
    };
    const describe = () => {
      if (!base) return;
      if (runs.length === 1 && base.color === undefined) {
        readout.textContent = sayOne();
      } else {
        readout.replaceChildren(...saySeveral().map(([text, color]) => {
          const part = document.createElement('b');
          part.textContent = text;
          part.className = color === null ? 'step' : `run${color}`;
          return part;
        }));
      }
      svg.setAttribute('aria-label', `${title}: ${[...readout.childNodes].map((n) => n.textContent).join(' ')}`);
    };

    const point = (i) => {
      at = i;
      for (const old of svg.querySelectorAll('.cursor, .here')) old.remove();
      if (i >= 0 && place) {
        make('line', {class: 'cursor', x1: place.xs[i], x2: place.xs[i], y1: TOP, y2: height - BOTTOM}, svg);
        const step = base.curve.first_steps[i];
        for (const run of runs) {
          const v = run.series.last[run === base ? i : bucketAt(run.curve, step)];
          if (v !== null && v !== undefined && v >= place.low && v <= place.high && run.curve.last_step >= step)
            make('circle', {class: run.color === undefined ? 'here' : `here run${run.color}`, cx: place.xs[i], cy: place.y(v), r: 3.5}, svg);
        }
      }
      describe();
    };

    /* Marks at the edges of the scale the buckets, and the dots, that lie outside. */
    const drawMarks = (x, low, high) => {
      const outside = [];
      for (const run of runs) {
        run.series.max.forEach((v, i) => { if (v !== null && v > high) outside.push({top: true, x: run.xs[i], v, step: run.curve.first_steps[i]}); });
        run.series.min.forEach((v, i) => { if (v !== null && v < low) outside.push({top: false, x: run.xs[i], v, step: run.curve.first_steps[i]}); });
        for (const d of run.dots) if (d.loss !== null && (d.loss > high || d.loss < low)) outside.push({top: d.loss > high, x: x(d.step), v: d.loss, step: d.step});
      }
      outside.sort((a, b) => a.x - b.x);
      for (const top of [true, false]) {
        let last = null;
        for (const o of outside.filter((p) => p.top === top)) {
          if (last && o.x - last.x < MARK_PIXELS) {
            if (top ? o.v > last.v : o.v < last.v) last.v = o.v;
            last.title.textContent = `${top ? 'up' : 'down'} to ${format(last.v)}, near step ${last.step.toLocaleString('en')}`;
            continue;
          }
          const y = top ? TOP - 1 : height - BOTTOM + 1, by = top ? 6 : -6;
          const mark = make('path', {class: 'outside', d: `M${(o.x - 4).toFixed(1)} ${y + by}L${o.x.toFixed(1)} ${y}L${(o.x + 4).toFixed(1)} ${y + by}Z`}, svg);
          last = {x: o.x, v: o.v, step: o.step, title: make('title', {}, mark)};
          last.title.textContent = `${format(o.v)} at step ${o.step.toLocaleString('en')}`;
        }
      }
    };

    const drawRun = (run, x, y, into) => {
      const kind = run.color === undefined ? '' : ` run${run.color}`;
      run.xs = run.curve.first_steps.map((s) => x(Math.min(run.curve.last_step, s + (run.curve.bucket_steps - 1) / 2)));
      const last = run.series.last.map(y);
      if (run.curve.bucket_steps > 1 && runs.length === 1)
        make('path', {class: `band${kind}`, d: band(run.xs, run.series.min.map(y), run.series.max.map(y))}, into);
      make('path', {class: `trace${kind}`, d: line(run.xs, last)}, into);
      if (run.xs.length === 1 && last[0] !== null)
        make('circle', {class: `here${kind}`, cx: run.xs[0], cy: last[0], r: 2.5}, into);
      const sets = setsOf(run.dots);
      for (const d of run.dots)
        if (d.loss !== null && d.step >= 1) make('circle', {class: `dot${kind || ` set${sets.indexOf(d.set || '') % 6}`}`, cx: x(d.step), cy: y(d.loss), r: runs.length > 1 ? 2.2 : 3}, into);
    };

    const draw = () => {
      const width = Math.round(figure.clientWidth);
      svg.replaceChildren();
      place = null;
      clipped = false;
      if (!base || !width) return;
      svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
      const dots = runs.flatMap((r) => r.dots);
      const scale = scaleOf([...runs.flatMap((r) => [...r.series.min, ...r.series.max]), ...dots.map((d) => d.loss)], clips);
      if (!scale) return;
      const {low, high} = scale;
      const lastStep = Math.max(1, ...runs.map((r) => r.curve.last_step), ...dots.map((d) => d.step));
      const x = (s) => lastStep === 1 ? (LEFT + width - RIGHT) / 2 : LEFT + (width - LEFT - RIGHT) * (s - 1) / (lastStep - 1);
      const y = (v) => v === null ? null : TOP + (height - TOP - BOTTOM) * (1 - (v - low) / (high - low));
      for (const t of ticks(low, high, height > 200 ? 5 : 3)) {
        if (t < low || t > high) continue;
        make('line', {class: 'grid', x1: LEFT, x2: width - RIGHT, y1: Math.round(y(t)) + 0.5, y2: Math.round(y(t)) + 0.5}, svg);
        make('text', {x: LEFT - 8, y: y(t) + 4, 'text-anchor': 'end'}, svg).textContent = format(t);
      }
      for (const t of ticks(1, lastStep, Math.max(2, Math.min(12, Math.floor(width / 110))))) {
        if (t < 1) continue;
        make('text', {x: x(t), y: height - 6, 'text-anchor': x(t) > width - 30 ? 'end' : 'middle'}, svg).textContent = short(t);
      }
      clipped = scale.clipped;
      let into = svg;
      if (clipped) {
        make('rect', {x: LEFT - 3, y: TOP, width: Math.max(0, width - LEFT - RIGHT + 6), height: height - TOP - BOTTOM}, make('clipPath', {id: clipName}, svg));
        into = make('g', {'clip-path': `url(#${clipName})`}, svg);
      }
      for (const run of runs) drawRun(run, x, y, into);
      if (clipped) drawMarks(x, low, high);
      place = {xs: base.xs, y, low, high};
      point(Math.min(at, base.xs.length - 1));
    };

    const nearest = (event) => {
      if (!place || !place.xs.length) return;
      const box = svg.getBoundingClientRect();
      const wanted = (event.clientX - box.left) * (svg.viewBox.baseVal.width / box.width);
      let best = 0;
      for (let i = 1; i < place.xs.length; i++)
        if (Math.abs(place.xs[i] - wanted) < Math.abs(place.xs[best] - wanted)) best = i;
      point(best);
    };
    svg.addEventListener('pointermove', nearest);
    svg.addEventListener('pointerleave', () => point(-1));
    svg.addEventListener('blur', () => point(-1));
    svg.addEventListener('keydown', (event) => {
      if (!place || !place.xs.length) return;
      const last = place.xs.length - 1;
      const from = at < 0 ? last : at;
      const move = {ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last, PageUp: from - 20, PageDown: from + 20}[event.key];
      if (move === undefined) return;
      point(Math.max(0, Math.min(last, move)));
      event.preventDefault();
    });
    new ResizeObserver(draw).observe(figure);

    return {
      update(given, name, clip) {
        clips = clip;
        runs = given.map((r) => ({...r, dots: r.dots || [], series: r.curve.series.find((s) => s.name === name)}))
          .filter((r) => r.series && (r.series.last.some((v) => v !== null) || r.dots.length));
        base = runs.reduce((a, b) => !a || b.curve.last_step > a.curve.last_step ? b : a, null);
        figure.hidden = !base;
        draw();
      },
      clipped: () => clipped,
    };
  };

  /* Draws a small line without axes into `svg`. */
  const spark = (svg, curve, name) => {
    const series = curve.series.find((s) => s.name === name);
    const width = 112, height = 26;
    svg.replaceChildren();
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    const scale = series && scaleOf([...series.min, ...series.max], true);
    if (!scale || series.last.length < 2) return;
    const count = series.last.length;
    const xs = series.last.map((_, i) => 1 + (width - 2) * i / (count - 1));
    const within = (v) => Math.max(scale.low, Math.min(scale.high, v));
    const y = (v) => v === null ? null : 2 + (height - 4) * (1 - (within(v) - scale.low) / (scale.high - scale.low));
    make('path', {class: 'band', d: band(xs, series.min.map(y), series.max.map(y))}, svg);
    make('path', {class: 'trace', d: line(xs, series.last.map(y))}, svg);
  };

  /* Returns a curve whose only series, `name`, has no values, for dots without a line. */
  const empty = (curve, name) => {
    const none = curve.first_steps.map(() => null);
    return {...curve, series: [{name, min: none, max: none, last: none}]};
  };

  /* Returns the seconds that a job has left, by its newest step times; NaN: unknown. */
  const left = (curve, job) => {
    const times = curve && curve.series.find((s) => s.name === 'step_ms');
    const last = times ? times.last.filter((v) => v !== null).slice(-8) : [];
    return last.length && job.state === 'running' ? (job.steps - job.step) * last.reduce((a, b) => a + b) / last.length / 1000 : NaN;
  };

  return {chart, spark, short, make, setsOf, empty, left};
})();
