/* curves: draws downsampled curves (GET /api/v1/jobs/N/curve) as SVG.
 *
 * Each bucket holds the lowest, highest and newest value of its steps. The band spans lowest to
 * highest, so that a spike of one step in a million is visible; the line follows the newest. */
'use strict';

const curves = (() => {
  const SVG = 'http://www.w3.org/2000/svg';
  const LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 22;

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

  const range = (series, dots) => {
    let low = Infinity, high = -Infinity;
    const take = (v) => {
      if (v === null) return;
      if (v < low) low = v;
      if (v > high) high = v;
    };
    series.min.forEach(take);
    series.max.forEach(take);
    dots.forEach((d) => take(d.loss));
    if (low > high) return null;
    if (low === high) {
      const room = Math.abs(low) * 0.05 || 1;
      return [low - room, high + room];
    }
    const room = (high - low) * 0.04;
    return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
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

  /* Builds a chart in `figure`; returns {update(curve, name, dots)}, where dots are validations. */
  const chart = (figure, title, height, format) => {
    const caption = document.createElement('figcaption');
    const head = document.createElement('h3');
    const readout = document.createElement('span');
    head.textContent = title;
    caption.append(head, readout);
    const svg = make('svg', {class: 'plot', height, tabindex: 0, role: 'img', 'aria-label': title});
    figure.append(caption, svg);
    let data = null, at = -1, points = null;

    const describe = () => {
      if (!data) return;
      const {curve, series, dots} = data;
      const i = at >= 0 ? at : series.last.length - 1;
      if (i < 0) { readout.textContent = ''; return; }
      const first = curve.first_steps[i];
      const spread = series.min[i] !== series.max[i] ? ` (${format(series.min[i])} to ${format(series.max[i])})` : '';
      const next = first + curve.bucket_steps;
      const near = at >= 0 ? dots.filter((d) => d.step >= first && d.step < next) : [];
      const losses = setsOf(near).map((set) => `${set}${set ? ' ' : ''}${format(near.find((d) => (d.set || '') === set).loss)}`);
      readout.textContent = at < 0 ? `${format(series.last[i])}`
        : `step ${first.toLocaleString('en')}: ${format(series.last[i])}${spread}${losses.length ? `, validation ${losses.join(', ')}` : ''}`;
      svg.setAttribute('aria-label', `${title}: ${readout.textContent}`);
    };

    const point = (i) => {
      at = i;
      for (const old of svg.querySelectorAll('.cursor, .here')) old.remove();
      if (i >= 0 && points) {
        make('line', {class: 'cursor', x1: points.xs[i], x2: points.xs[i], y1: TOP, y2: height - BOTTOM}, svg);
        if (points.last[i] !== null) make('circle', {class: 'here', cx: points.xs[i], cy: points.last[i], r: 3.5}, svg);
      }
      describe();
    };

    const draw = () => {
      if (!data) return;
      const {curve, series, dots} = data;
      const width = Math.max(160, svg.clientWidth || 600);
      const bounds = range(series, dots);
      svg.replaceChildren();
      svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
      if (!bounds) { points = null; return; }
      const lastStep = Math.max(curve.last_step, 2, ...curve.first_steps.slice(-1));
      const x = (step) => LEFT + (width - LEFT - RIGHT) * (step - 1) / (lastStep - 1);
      const y = (v) => v === null ? null : TOP + (height - TOP - BOTTOM) * (1 - (v - bounds[0]) / (bounds[1] - bounds[0]));
      for (const t of ticks(bounds[0], bounds[1], height > 200 ? 5 : 3)) {
        make('line', {class: 'grid', x1: LEFT, x2: width - RIGHT, y1: Math.round(y(t)) + 0.5, y2: Math.round(y(t)) + 0.5}, svg);
        make('text', {x: LEFT - 8, y: y(t) + 4, 'text-anchor': 'end'}, svg).textContent = format(t);
      }
      for (const t of ticks(1, lastStep, Math.max(2, Math.min(8, Math.floor(width / 110))))) {
        if (t < 1) continue;
        make('text', {x: x(t), y: height - 6, 'text-anchor': x(t) > width - 30 ? 'end' : 'middle'}, svg).textContent = short(t);
      }
      points = {
        xs: curve.first_steps.map((s) => x(Math.min(lastStep, s + (curve.bucket_steps - 1) / 2))),
        last: series.last.map(y),
      };
      if (curve.bucket_steps > 1)
        make('path', {class: 'band', d: band(points.xs, series.min.map(y), series.max.map(y))}, svg);
      make('path', {class: 'trace', d: line(points.xs, points.last)}, svg);
      if (points.xs.length === 1 && points.last[0] !== null)
        make('circle', {class: 'here', cx: points.xs[0], cy: points.last[0], r: 2.5}, svg);
      const sets = setsOf(dots);
      for (const d of dots)
        if (d.loss !== null && d.step >= 1) make('circle', {class: `dot set${sets.indexOf(d.set || '') % 6}`, cx: x(d.step), cy: y(d.loss), r: 3}, svg);
      point(Math.min(at, points.xs.length - 1));
    };

    const nearest = (event) => {
      if (!points || !points.xs.length) return;
      const box = svg.getBoundingClientRect();
      const wanted = (event.clientX - box.left) * (svg.viewBox.baseVal.width / box.width);
      let best = 0;
      for (let i = 1; i < points.xs.length; i++)
        if (Math.abs(points.xs[i] - wanted) < Math.abs(points.xs[best] - wanted)) best = i;
      point(best);
    };
    svg.addEventListener('pointermove', nearest);
    svg.addEventListener('pointerleave', () => point(-1));
    svg.addEventListener('blur', () => point(-1));
    svg.addEventListener('keydown', (event) => {
      if (!points || !points.xs.length) return;
      const last = points.xs.length - 1;
      const from = at < 0 ? last : at;
      const move = {ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last, PageUp: from - 20, PageDown: from + 20}[event.key];
      if (move === undefined) return;
      point(Math.max(0, Math.min(last, move)));
      event.preventDefault();
    });
    new ResizeObserver(draw).observe(figure);

    return {
      update(curve, name, dots) {
        const series = curve.series.find((s) => s.name === name);
        figure.hidden = !series || !(series.last.some((v) => v !== null) || (dots || []).length);
        data = series ? {curve, series, dots: dots || []} : null;
        draw();
      },
    };
  };

  /* Draws a small line without axes into `svg`. */
  const spark = (svg, curve, name) => {
    const series = curve.series.find((s) => s.name === name);
    const width = 112, height = 26;
    svg.replaceChildren();
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    const bounds = series && range(series, []);
    if (!bounds || series.last.length < 2) return;
    const count = series.last.length;
    const xs = series.last.map((_, i) => 1 + (width - 2) * i / (count - 1));
    const y = (v) => v === null ? null : 2 + (height - 4) * (1 - (v - bounds[0]) / (bounds[1] - bounds[0]));
    make('path', {class: 'band', d: band(xs, series.min.map(y), series.max.map(y))}, svg);
    make('path', {class: 'trace', d: line(xs, series.last.map(y))}, svg);
  };

  /* Returns a curve whose only series, `name`, has no values, for dots without a line. */
  const empty = (curve, name) => {
    const none = curve.first_steps.map(() => null);
    return {...curve, series: [{name, min: none, max: none, last: none}]};
  };

  return {chart, spark, short, make, setsOf, empty};
})();
