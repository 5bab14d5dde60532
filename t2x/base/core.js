'use strict';

const SVG = 'http://www.w3.org/2000/svg';
const data = JSON.parse(document.getElementById('data').textContent);
const byId = (id) => document.getElementById(id);

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
const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const cut = (text, most) => text.length > most ? text.slice(0, most - 1) + '\u2026' : text;
const dashes = [null, '7 3', '2 3', '9 3 2 3'];
const lineStyle = (slot) => ({ color: `var(--c${slot % 6})`, dash: dashes[Math.floor(slot / 6) % dashes.length] });
/** Text that may be broken after underscores. */
const breakable = (text) => text.split(/(?<=_)/).flatMap((part) => [html('wbr'), part]);

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

/** Ticks of a logarithmic axis: 1, 2 and 5 times powers of ten, fewer for a long axis. */
function logTicks(low, high, count) {
  let values = [];
  for (const factors of [[1, 2, 5], [1, 3], [1]]) {
    values = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      values.push(...factors.map((factor) => Number(`${factor}e${power}`)).filter((value) => value >= low && value <= high));
    }
    if (values.length <= count) break;
  }
  if (values.length < 3) return ticks(low, high, count);
  return values.filter((_, index) => index % Math.ceil(values.length / count) === 0);
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

/** The range of some numbers with a margin, as a part of its length. */
function extent(values, margin, log = false) {
  const numbers = values.filter((value) => isNumber(value) && (!log || value > 0)).map((value) => log ? Math.log(value) : value);
  if (!numbers.length) return log ? [1, 10] : [0, 1];
  const [low, high] = numbers.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  const room = (high - low || Math.abs(high) || 1) * margin;
  return [low - room, high + room].map((value) => log ? Math.exp(value) : value);
}

/** Returns the position nearest to `x` at which a centred text is within `width`. */
function within(x, text, width) {
  const half = 4.3 * text.length;
  return Math.max(half, Math.min(x, width - half));
}

function scale([low, high], from, to, log = false) {
  if (log) return (value) => scale([Math.log(low), Math.log(high)], from, to)(Math.log(value));
  return (value) => from + ((value - low) / (high - low || 1)) * (to - from);
}

/** Builds an empty chart with axes {range, name, log}; returns {root, body, X, Y, box}. */
function frame(width, height, x, y, right) {
  const places = (axis, count) => {
    const values = axis.log ? logTicks(...axis.range, count) : ticks(...axis.range, count);
    return values.length < 3 && count < 9 ? places(axis, 2 * count) : values;
  };
  const yTicks = places(y, 5);
  const yLabels = tickLabels(yTicks);
  const box = { left: 12 + 7 * Math.max(3, ...yLabels.map((label) => label.length)), top: 26, right: width - right, bottom: height - 40 };
  const X = scale(x.range, box.left, box.right, x.log);
  const Y = scale(y.range, box.bottom, box.top, y.log);
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}` });
  yTicks.forEach((value, index) => root.append(
    svg('line', { class: 'grid', x1: box.left, x2: box.right, y1: Y(value), y2: Y(value) }),
    svg('text', { x: box.left - 6, y: Y(value) + 4, 'text-anchor': 'end' }, yLabels[index])));
  const xTicks = places(x, Math.max(3, Math.floor((box.right - box.left) / 90)));
  tickLabels(xTicks).forEach((label, index) => root.append(
    svg('line', { class: 'axis', x1: X(xTicks[index]), x2: X(xTicks[index]), y1: box.bottom, y2: box.bottom + 4 }),
    svg('text', { x: within(X(xTicks[index]), label, width), y: box.bottom + 17, 'text-anchor': 'middle' }, label)));
  const clip = `clip-${(frame.count = (frame.count || 0) + 1)}`;
  const body = svg('g', { 'clip-path': `url(#${clip})` });
  root.append(
    svg('clipPath', { id: clip }, svg('rect', { x: box.left - 4, y: box.top - 4, width: Math.max(0, box.right - box.left) + 8, height: box.bottom - box.top + 4 })),
    svg('line', { class: 'axis', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg('text', { x: 0, y: 12, class: 'title' }, cut(y.name, width / 6.8)),
    svg('text', { x: box.right, y: height - 6, 'text-anchor': 'end', class: 'title' }, cut(x.name, width / 6.8)),
    body);
  return { root, body, X, Y, box };
}

/** Shows a chart with a text alternative, or a message instead of it, without the keys of an earlier chart. */
function show(figure, root, text) {
  figure.onblur = figure.onkeydown = null;
  if (root) make(root, { role: 'img', 'aria-label': text }, []);
  figure.replaceChildren(root || html('p', { class: 'soft' }, text));
}

/** Shows a tooltip beside a place of the chart. The first of `lines` is bold; null removes the tooltip. */
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

/** Returns a function of a place that finds the nearest of `marks` ({x, y}) within `reach` pixels. */
const nearest = (marks, reach) => (x, y) => {
  let found = null;
  let least = reach * reach;
  for (const mark of marks) {
    const far = (mark.x - x) ** 2 + (mark.y - y) ** 2;
    if (far < least) { least = far; found = mark; }
  }
  return found;
};

/** Calls `onMark` with the mark that `find(x, y)` returns at the pointer, the next of `stops` for an arrow key, or null. */
function explore(figure, root, find, stops, onMark) {
  const look = (event) => {
    const bounds = root.getBoundingClientRect();
    onMark(find(event.clientX - bounds.left, event.clientY - bounds.top));
  };
  root.addEventListener('pointermove', look);
  root.addEventListener('pointerdown', look);
  // Touch pointers leave immediately: their tooltip stays.
  root.addEventListener('pointerleave', (event) => { if (event.pointerType === 'mouse') onMark(null); });
  let at = -1;
  figure.onblur = () => { at = -1; onMark(null); };
  figure.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === 'Escape') figure.onblur();
    if (!step || !stops.length) return;
    event.preventDefault();
    at = at < 0 && step < 0 ? stops.length - 1 : (at + step + stops.length) % stops.length;
    onMark(stops[at]);
  };
}

/** As `explore`, and shows a tooltip with `lines(mark)` at the mark. */
function exploreTips(figure, root, find, stops, lines) {
  explore(figure, root, find, stops, (mark) => tip(figure, mark && lines(mark), mark && mark.x, mark && mark.y));
}

/** The line of a curve in a legend or table. */
function legendKey({ color: stroke, dash }) {
  return svg('svg', { viewBox: '0 0 22 8', 'aria-hidden': 'true' },
    svg('line', { x1: 0, x2: 22, y1: 4, y2: 4, stroke, 'stroke-width': 2.5, 'stroke-dasharray': dash }));
}

/** Fills a legend with buttons that call `pick(index)`, which fills it again. `curves`: [{index, label, lit, fixed, color, dash}]. */
function fillLegend(legend, curves, pick) {
  legend.replaceChildren(...curves.map((curve, place) => {
    const key = legendKey(curve.lit ? curve : { color: 'var(--faint)', dash: null });
    const button = html('button', { type: 'button', 'aria-pressed': String(curve.lit), disabled: curve.fixed ? '' : null }, key, curve.label);
    button.addEventListener('click', () => {
      pick(curve.index);
      legend.children[place].focus();
    });
    return button;
  }));
}

function choices(select, pairs) {
  select.replaceChildren(...pairs.map(([value, name]) => html('option', { value }, name)));
}

function redrawOnResize(draw) {
  let width = document.documentElement.clientWidth;
  new ResizeObserver(() => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    draw();
  }).observe(document.documentElement);
}

/** Returns the width and the height of a chart with two axes. */
function chartSize(figure, highest = 460) {
  const width = Math.max(280, figure.clientWidth);
  return [width, Math.min(highest, Math.max(300, width * 0.5))];
}

const color = (verdict) => `var(--${{ helps: 'help', hurts: 'hurt', same: 'same', baseline: 'ink' }[verdict] || 'none'})`;

/** The symbol of a verdict: a triangle up or down, a square, a diamond for the baseline, else a hollow circle. */
function marker(x, y, verdict) {
  const shapes = { helps: 'M0,-6L5.5,4.5H-5.5Z', hurts: 'M0,6L5.5,-4.5H-5.5Z', same: 'M-4.5,-4.5h9v9h-9Z', baseline: 'M0,-6L6,0L0,6L-6,0Z' };
  const shape = shapes[verdict];
  return svg('path', {
    class: 'mark', transform: `translate(${x},${y})`, d: shape || 'M-4.5,0a4.5,4.5 0 1 0 9,0a4.5,4.5 0 1 0 -9,0Z',
    fill: shape ? color(verdict) : 'var(--paper)', stroke: color(verdict), 'stroke-width': shape ? 1 : 2,
  });
}

/** Writes the names of marks beside them, in order, where no other mark or name is. */
function placeNames(root, marks, named, box, width) {
  const taken = marks.map(({ x, y }) => [x - 6, y - 6, x + 6, y + 6]);
  for (const { x, y, row } of named) {
    const name = cut(row.label, 34);
    const size = 6.6 * name.length;
    const places = [[x + 9, y + 4, 'start'], [x - 9, y + 4, 'end'], [x, y - 9, 'middle'], [x, y + 17, 'middle']];
    for (const [left, top, anchor] of places) {
      const start = left - { start: 0, end: size, middle: size / 2 }[anchor];
      const area = [start, top - 11, start + size, top + 2];
      const free = area[0] > box.left && area[2] < width && area[1] > 14 && area[3] < box.bottom && taken.every(
        (other) => other[2] < area[0] || other[0] > area[2] || other[3] < area[1] || other[1] > area[3]);
      if (!free) continue;
      taken.push(area);
      root.append(svg('text', { x: left, y: top, 'text-anchor': anchor, class: 'name' }, name));
      break;
    }
  }
}
