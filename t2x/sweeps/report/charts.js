'use strict';

const SVG = 'http://www.w3.org/2000/svg';

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  // Strings are appended as text nodes, so that text of users is never parsed as HTML.
  for (const child of children) if (child !== null && child !== undefined) element.append(child);
  return element;
}
const html = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
const minus = (text) => text.replace(/-/g, '\u2212');

/** Formats a number with a unit prefix: 1234567 -> 1.23M. `zeros` keeps trailing zeros: 1.20M. */
function short(value, digits = 3, zeros = false) {
  if (!isNumber(value)) return '';
  const format = (part) => minus(zeros ? part.toPrecision(digits) : String(Number(part.toPrecision(digits))));
  const size = Math.abs(value);
  if (size && size < 1e-3) return minus(value.toExponential(Math.max(0, digits - 1)));
  const units = [[1e18, 'E'], [1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];
  for (const [unit, name] of units) {
    if (size >= unit * 0.9995) return format(value / unit) + name;
  }
  return format(value);
}

function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.999);
  const values = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) values.push(at * step);
  return values;
}

/** Labels of ticks, with enough digits to distinguish them. */
function tickLabels(values) {
  for (let digits = 2; digits < 9; digits++) {
    const labels = values.map((value) => short(value, digits));
    const exact = labels.length === new Set(labels).size && values.every(
      (value) => Math.abs(Number(value.toPrecision(digits)) - value) <= 1e-9 * Math.abs(value));
    if (exact) return labels;
  }
  return values.map((value) => short(value, 4));
}

function extent(values, margin) {
  const numbers = values.filter(isNumber);
  if (!numbers.length) return [0, 1];
  let low = Infinity;
  let high = -Infinity;
  for (const value of numbers) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const room = (high - low || Math.abs(high) || 1) * margin;
  return [low - room, high + room];
}

/** Returns the position nearest to `x` at which a centred text is within `width`. */
function within(x, text, width) {
  const half = 4.3 * text.length;
  return Math.max(half, Math.min(x, width - half));
}

const scale = ([low, high], from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

/** Builds an empty chart with axes; returns {root, body, X, Y, box}. */
function frame(width, height, x, y, right) {
  const yTicks = ticks(y.range[0], y.range[1], 5);
  const yLabels = tickLabels(yTicks);
  const box = { left: 12 + 7 * Math.max(3, ...yLabels.map((label) => label.length)), top: 26, right: width - right, bottom: height - 40 };
  const X = scale(x.range, box.left, box.right);
  const Y = scale(y.range, box.bottom, box.top);
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${y.name} against ${x.name}` });
  yTicks.forEach((value, index) => root.append(
    svg('line', { class: 'grid', x1: box.left, x2: box.right, y1: Y(value), y2: Y(value) }),
    svg('text', { x: box.left - 6, y: Y(value) + 4, 'text-anchor': 'end' }, yLabels[index])));
  const xTicks = ticks(x.range[0], x.range[1], Math.max(2, Math.floor((box.right - box.left) / 90)));
  tickLabels(xTicks).forEach((label, index) => root.append(
    svg('line', { class: 'axis', x1: X(xTicks[index]), x2: X(xTicks[index]), y1: box.bottom, y2: box.bottom + 4 }),
    svg('text', { x: within(X(xTicks[index]), label, width), y: box.bottom + 17, 'text-anchor': 'middle' }, label)));
  const clip = `clip-${(frame.count = (frame.count || 0) + 1)}`;
  const body = svg('g', { 'clip-path': `url(#${clip})` });
  root.append(
    svg('clipPath', { id: clip }, svg('rect', { x: box.left, y: box.top - 4, width: Math.max(0, box.right - box.left) + 4, height: box.bottom - box.top + 4 })),
    svg('line', { class: 'axis', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg('text', { x: 0, y: 12, class: 'name' }, y.name),
    svg('text', { x: box.right, y: height - 6, 'text-anchor': 'end', class: 'name' }, x.name),
    body);
  return { root, body, X, Y, box };
}

function show(figure, root, message) {
  figure.replaceChildren(message ? html('p', { class: 'soft' }, message) : root);
}

/** Shows a tooltip beside the pointer. The first of `lines` is bold; null removes the tooltip. */
function tip(figure, lines, x, y) {
  figure.querySelectorAll('.tip').forEach((tooltip) => tooltip.remove());
  if (!lines) return;
  const box = html('div', { class: 'tip', role: 'status' }, html('b', {}, lines[0]));
  for (const line of lines.slice(1)) box.append(html('div', {}, line));
  figure.append(box);
  const left = x + 14 + box.offsetWidth > figure.clientWidth ? x - 14 - box.offsetWidth : x + 14;
  box.style.left = `${Math.max(0, Math.min(left, figure.clientWidth - box.offsetWidth))}px`;
  box.style.top = `${Math.max(0, y - box.offsetHeight - 10)}px`;
}

/** Calls `onMark(mark)` with the nearest of `marks` ({x, y}) within `reach` pixels, or with null. */
function hover(figure, root, marks, reach, onMark) {
  const look = (event) => {
    const bounds = root.getBoundingClientRect();
    const x = event.clientX - bounds.left;
    const y = event.clientY - bounds.top;
    let nearest = null;
    let least = reach * reach;
    for (const mark of marks) {
      const far = (mark.x - x) ** 2 + (mark.y - y) ** 2;
      if (far < least) { least = far; nearest = mark; }
    }
    onMark(nearest);
  };
  root.addEventListener('pointermove', look);
  root.addEventListener('pointerdown', look);
  // Touch pointers leave immediately: their tooltip stays.
  root.addEventListener('pointerleave', (event) => { if (event.pointerType === 'mouse') onMark(null); });
}

/** Draws differences with their intervals, one line per row. */
function drawForest(figure, rows, options) {
  const compared = rows.filter((row) => isNumber(row.difference));
  if (!compared.length) return show(figure, null, 'No comparison is available yet.');
  const width = Math.max(280, figure.clientWidth);
  const longest = 16 + 7 * Math.max(...compared.map((row) => row.label.length));
  // Long names are placed above their lines.
  const above = longest > width * 0.4;
  const names = above ? 0 : longest;
  const step = above ? 38 : 24;
  const height = step * compared.length + 52;
  const ends = compared.flatMap((row) => [row.difference_low, row.difference_high]).filter(isNumber).map(Math.abs).sort((a, b) => a - b);
  const far = Math.max(...compared.map((row) => Math.abs(row.difference))) * 1.15;
  // Intervals of two seeds may be a hundred times wider than the rest; they are clipped, with an arrow.
  const [usual, widest] = [ends[Math.floor(0.8 * (ends.length - 1))] || 0, ends[ends.length - 1] || 0];
  const most = Math.max(far, 1.03 * (widest > 2.5 * usual ? 1.2 * usual : widest)) || 1;
  const range = [-most, most];
  const X = scale(range, names + 8, width - 12);
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Differences to the baseline with ${options.confidence} intervals` });
  const bottom = height - 30;
  if (isNumber(options.margin)) root.append(svg('rect', { class: 'margin', x: X(Math.max(range[0], -options.margin)), y: 20, width: X(Math.min(range[1], options.margin)) - X(Math.max(range[0], -options.margin)), height: bottom - 20 }));
  const at = ticks(range[0], range[1], Math.max(4, Math.floor((width - names) / 80)));
  tickLabels(at).forEach((text, index) => root.append(
    svg('line', { class: at[index] ? 'grid' : 'axis', x1: X(at[index]), x2: X(at[index]), y1: 20, y2: bottom }),
    svg('text', { x: within(X(at[index]), text, width), y: bottom + 16, 'text-anchor': 'middle' }, text)));
  const [left, right] = options.goal === 'min' ? ['\u2190 better', 'worse \u2192'] : ['\u2190 worse', 'better \u2192'];
  root.append(
    svg('text', { x: X(0) - 10, y: 12, 'text-anchor': 'end' }, left),
    svg('text', { x: X(0) + 10, y: 12 }, right));
  const marks = [];
  compared.forEach((row, index) => {
    const y = 22 + step * (index + 1) - 12;
    const color = `var(--${{ helps: 'help', hurts: 'hurt', same: 'same' }[row.verdict] || 'none'})`;
    const room = Math.floor((above ? width : names) / 6.6);
    const name = row.label.length > room ? row.label.slice(0, room - 1) + '\u2026' : row.label;
    root.append(svg('text', { x: 0, y: above ? y - 9 : y + 4, class: 'name' }, name, svg('title', {}, row.label)));
    if (isNumber(row.difference_low)) {
      const [from, to] = [row.difference_low, row.difference_high].map((end) => X(Math.max(range[0], Math.min(range[1], end))));
      root.append(svg('line', { x1: from, x2: to, y1: y, y2: y, stroke: color, 'stroke-width': 2 }));
      if (row.difference_low < range[0]) root.append(svg('path', { d: `M${from + 6},${y - 4}L${from},${y}L${from + 6},${y + 4}`, fill: 'none', stroke: color, 'stroke-width': 2 }));
      if (row.difference_high > range[1]) root.append(svg('path', { d: `M${to - 6},${y - 4}L${to},${y}L${to - 6},${y + 4}`, fill: 'none', stroke: color, 'stroke-width': 2 }));
    }
    const sure = row.verdict !== 'inconclusive';
    root.append(svg('circle', { cx: X(row.difference), cy: y, r: 4.5, fill: sure ? color : 'var(--paper)', stroke: color, 'stroke-width': 2 }));
    marks.push({ x: X(row.difference), y, row });
  });
  show(figure, root);
  const byLine = (event) => {
    const y = event.clientY - root.getBoundingClientRect().top;
    const mark = marks.find((item) => y >= item.y - step + 12 && y < item.y + 12);
    tip(figure, mark && options.lines(mark.row), mark && mark.x, mark && mark.y);
  };
  root.addEventListener('pointermove', byLine);
  root.addEventListener('pointerdown', byLine);
  root.addEventListener('pointerleave', (event) => { if (event.pointerType === 'mouse') tip(figure, null); });
}

/** Draws quality against a cost, with the Pareto front of each point of the grid. */
function drawScatter(figure, rows, options) {
  const placed = rows.filter((row) => isNumber(row.mean) && isNumber(row.costs[options.cost]));
  if (!placed.length) return show(figure, null, 'No finished trial has recorded this cost.');
  const width = Math.max(280, figure.clientWidth);
  const height = Math.min(440, Math.max(300, width * 0.5));
  const cost = (row) => row.costs[options.cost];
  const { root, body, X, Y, box } = frame(width, height,
    { range: extent(placed.map(cost), 0.08), name: options.costName },
    { range: extent(placed.map((row) => row.mean), 0.1), name: options.metricName }, 16);
  for (const point of new Set(placed.map((row) => row.point))) {
    const front = placed.filter((row) => row.point === point && row.fronts.includes(options.cost))
      .sort((a, b) => cost(a) - cost(b));
    if (front.length > 1) {
      const path = front.map((row, index) => index ? `H${X(cost(row))}V${Y(row.mean)}` : `M${X(cost(row))},${Y(row.mean)}`);
      body.append(svg('path', { class: 'front', d: path.join('') }));
    }
  }
  const taken = [];
  const marks = placed.map((row) => ({ x: X(cost(row)), y: Y(row.mean), row }));
  for (const { x, y, row } of marks) {
    const color = row.verdict === 'baseline' ? 'var(--ink)' : `var(--${{ helps: 'help', hurts: 'hurt', same: 'same' }[row.verdict] || 'none'})`;
    const filled = row.verdict !== 'inconclusive';
    body.append(svg('circle', { cx: x, cy: y, r: 4.5, fill: filled ? color : 'var(--paper)', stroke: color, 'stroke-width': 1.5 }));
    taken.push([x - 5, y - 5, x + 5, y + 5]);
  }
  const named = marks.filter(({ row }) => row.verdict === 'baseline' || row.fronts.includes(options.cost) || marks.length < 13);
  for (const { x, y, row } of named) {
    const size = 6.6 * row.label.length;
    const places = [[x + 8, y + 4, 'start'], [x - 8, y + 4, 'end'], [x, y - 9, 'middle'], [x, y + 17, 'middle']];
    for (const [left, top, anchor] of places) {
      const start = left - { start: 0, end: size, middle: size / 2 }[anchor];
      const area = [start, top - 11, start + size, top + 2];
      const free = area[0] > box.left && area[2] < width && area[1] > 14 && area[3] < box.bottom && taken.every(
        (other) => other[2] < area[0] || other[0] > area[2] || other[3] < area[1] || other[1] > area[3]);
      if (!free) continue;
      taken.push(area);
      root.append(svg('text', { x: left, y: top, 'text-anchor': anchor, class: 'name' }, row.label));
      break;
    }
  }
  show(figure, root);
  hover(figure, root, marks, 24, (mark) => tip(figure, mark && options.lines(mark.row), mark && mark.x, mark && mark.y));
}

/** Returns the mean and range of the runs at the steps that they have in common. */
function band(runs) {
  const shared = runs[0].points.filter((point) => runs.every((run) => run.at.has(point.step)));
  return shared.map(({ step }) => {
    const points = runs.map((run) => run.at.get(step));
    const values = points.map((point) => point.value);
    const mean = (list) => list.reduce((sum, value) => sum + value, 0) / list.length;
    // The median, as the seconds of the seed that compiles include compilation.
    const xs = points.map((point) => point.x).sort((a, b) => a - b);
    return { x: xs[Math.floor((xs.length - 1) / 2)], mean: mean(values), low: Math.min(...values), high: Math.max(...values) };
  });
}

/** Draws learning curves. `series`: [{label, color, dash, runs: [{seed, status, points: [{step, x, value}]}]}]. */
function drawCurves(figure, series, options) {
  const all = series.flatMap((curve) => curve.runs.flatMap((run) => run.points));
  if (!all.length) return show(figure, null, options.empty);
  const width = Math.max(280, figure.clientWidth);
  const height = Math.min(480, Math.max(300, width * 0.5));
  const far = Math.max(...all.map((point) => point.x));
  const xRange = options.late ? [far / 2, far] : [0, far];
  const inside = all.filter((point) => point.x >= xRange[0]);
  const labels = width > 640 && series.length <= 12;
  const right = labels ? Math.min(200, 20 + 6.8 * Math.max(...series.map((curve) => curve.label.length))) : 12;
  const { root, body, X, Y, box } = frame(width, height, { range: xRange, name: options.xName },
    { range: extent((inside.length ? inside : all).map((point) => point.value), 0.04), name: options.metricName }, right);
  const line = (points, y) => points.map((point, index) => `${index ? 'L' : 'M'}${X(point.x).toFixed(1)},${Y(y(point)).toFixed(1)}`).join('');
  const marks = [];
  const ends = [];
  for (const curve of series) {
    const finished = curve.runs.filter((run) => run.status === 'finished');
    const members = finished.length ? finished : curve.runs.filter((run) => run.status === 'running');
    const means = members.length ? band(members) : [];
    if (members.length > 1 && means.length > 1) {
      const edge = line(means, (at) => at.high) + line([...means].reverse(), (at) => at.low).replace('M', 'L') + 'Z';
      body.append(svg('path', { d: edge, fill: curve.color, 'fill-opacity': 0.13, stroke: 'none' }));
    }
    for (const run of curve.runs) {
      const path = svg('path', { d: line(run.points, (at) => at.value), fill: 'none', stroke: curve.color, 'stroke-width': 0.75, 'stroke-opacity': 0.45, 'stroke-linejoin': 'round' });
      body.append(path);
      for (const at of run.points) if (at.x >= xRange[0]) marks.push({ x: X(at.x), y: Y(at.value), at, run, curve, path });
      const last = run.points[run.points.length - 1];
      if (run.status === 'diverged' && last) {
        const [x, y] = [X(last.x), Y(last.value)];
        body.append(svg('path', { d: `M${x - 4},${y - 4}l8,8m0,-8l-8,8`, stroke: curve.color, 'stroke-width': 2, fill: 'none' }));
      }
    }
    if (means.length) {
      body.append(svg('path', { d: line(means, (at) => at.mean), fill: 'none', stroke: curve.color, 'stroke-width': 2, 'stroke-dasharray': curve.dash, 'stroke-linejoin': 'round' }));
      const last = means[means.length - 1];
      ends.push({ x: X(last.x), y: Y(last.mean), curve });
    }
  }
  if (labels) nameEnds(root, ends, box);
  show(figure, root);
  let lit = null;
  const dot = svg('circle', { r: 4, visibility: 'hidden' });
  root.append(dot);
  hover(figure, root, marks, 60, (mark) => {
    if (lit) { lit.classList.remove('lit'); lit.setAttribute('stroke-width', 0.75); lit.setAttribute('stroke-opacity', 0.45); }
    lit = mark && mark.path;
    body.classList.toggle('dim', Boolean(lit));
    if (lit) {
      lit.classList.add('lit');
      lit.setAttribute('stroke-width', 2.5);
      lit.setAttribute('stroke-opacity', 1);
      make(dot, { cx: mark.x, cy: mark.y, fill: mark.curve.color, visibility: 'visible' }, []);
    } else dot.setAttribute('visibility', 'hidden');
    tip(figure, mark && options.lines(mark.curve, mark.run, mark.at), mark && mark.x, mark && mark.y);
  });
}

/** Places names at the right ends of curves without overlap. */
function nameEnds(root, ends, box) {
  ends.sort((a, b) => a.y - b.y);
  let above = -Infinity;
  for (const end of ends) { end.at = Math.max(end.y, above + 14); above = end.at; }
  const over = ends.length ? Math.max(0, ends[ends.length - 1].at - box.bottom) : 0;
  let below = Infinity;
  for (const end of [...ends].reverse()) { end.at = Math.min(over ? end.at - over : end.at, below - 14); below = end.at; }
  for (const end of ends) {
    const { label, color } = end.curve;
    const name = label.length > 27 ? label.slice(0, 26) + '\u2026' : label;
    const text = svg('text', { x: box.right + 10, y: end.at + 4 }, name, svg('title', {}, label));
    text.style.fill = color;
    root.append(text);
  }
}
