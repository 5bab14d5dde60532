/** Builds a chart with one line per row and its name on the left; returns {root, X, at, bottom, step}. */
function rowChart(figure, rows, range, axisName) {
  const width = Math.max(280, figure.clientWidth);
  const longest = 16 + 7 * Math.max(...rows.map((row) => row.label.length));
  // Long names are placed above their lines.
  const above = longest > width * 0.4;
  const names = above ? 0 : longest;
  const step = above ? 38 : 24;
  const height = step * rows.length + 70;
  const bottom = height - 48;
  const X = scale(range, names + 8, width - 12);
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}` });
  const places = ticks(range[0], range[1], Math.max(4, Math.floor((width - names) / 80)));
  const grid = tickLabels(places).flatMap((text, index) => [
    svg('line', { class: places[index] ? 'grid' : 'axis', x1: X(places[index]), x2: X(places[index]), y1: 20, y2: bottom }),
    svg('text', { x: within(X(places[index]), text, width), y: bottom + 16, 'text-anchor': 'middle' }, text)]);
  root.append(...grid, svg('text', { x: width - 12, y: bottom + 38, 'text-anchor': 'end', class: 'title' }, cut(axisName, width / 6.8)));
  const at = (index) => 22 + step * (index + 1) - 12;
  const room = Math.floor((above ? width : names) / 6.6);
  rows.forEach((row, index) => root.append(
    svg('text', { x: 0, y: above ? at(index) - 9 : at(index) + 4, class: 'name' }, cut(row.label, room), svg('title', {}, row.label))));
  return { root, X, at, bottom, step };
}

/** Shows `lines(row)` for the row under the pointer. */
function exploreRows(figure, root, marks, step, lines) {
  const find = (x, y) => marks.find((item) => y >= item.y - step + 12 && y < item.y + 12) || null;
  exploreTips(figure, root, find, marks, (mark) => lines(mark.row));
}

/** Draws differences with their intervals, one line per row. */
function drawForest(figure, rows, options) {
  const compared = rows.filter((row) => isNumber(row.difference));
  if (!compared.length) return show(figure, null, 'No comparison is available yet.');
  const ends = compared.flatMap((row) => [row.difference_low, row.difference_high]).filter(isNumber).map(Math.abs).sort((a, b) => a - b);
  const far = Math.max(1.15 * Math.max(...compared.map((row) => Math.abs(row.difference))), 1.2 * (options.margin || 0));
  // Intervals of two seeds may be a hundred times wider than the rest; they are clipped, with an arrow.
  const [usual, widest] = [ends[Math.floor(0.8 * (ends.length - 1))] || 0, ends[ends.length - 1] || 0];
  const most = Math.max(far, 1.03 * (widest > 2.5 * usual ? 1.2 * usual : widest)) || 1;
  const range = [-most, most];
  const { root, X, at, bottom, step } = rowChart(figure, compared, range, options.axisName);
  if (isNumber(options.margin)) {
    const [from, to] = [X(-options.margin), X(options.margin)];
    root.prepend(svg('rect', { class: 'margin', x: from, y: 20, width: to - from, height: bottom - 20 }));
  }
  const [left, right] = options.goal === 'min' ? ['\u2190 better', 'worse \u2192'] : ['\u2190 worse', 'better \u2192'];
  root.append(
    svg('text', { x: X(0) - 10, y: 12, 'text-anchor': 'end' }, left),
    svg('text', { x: X(0) + 10, y: 12 }, right));
  const marks = compared.map((row, index) => {
    const y = at(index);
    const stroke = { fill: 'none', stroke: color(row.verdict), 'stroke-width': 2 };
    if (isNumber(row.difference_low)) {
      const [from, to] = [row.difference_low, row.difference_high].map((end) => X(Math.max(range[0], Math.min(range[1], end))));
      root.append(svg('path', { d: `M${from},${y}H${to}`, ...stroke }));
      if (row.difference_low < range[0]) root.append(svg('path', { d: `M${from + 6},${y - 4}L${from},${y}L${from + 6},${y + 4}`, ...stroke }));
      if (row.difference_high > range[1]) root.append(svg('path', { d: `M${to - 6},${y - 4}L${to},${y}L${to - 6},${y + 4}`, ...stroke }));
    }
    root.append(marker(X(row.difference), y, row.verdict));
    return { x: X(row.difference), y, row };
  });
  show(figure, root, `${options.axisName} with ${options.confidence} intervals: ${compared.map((row) => `${row.label} ${short(row.difference)}, ${row.verdict}`).join('; ')}`);
  exploreRows(figure, root, marks, step, options.lines);
}

/** Draws the ranks of each variant over the seeds: their mean, their range and a line for each seed. */
function drawRanks(figure, rows, options) {
  const ranked = rows.filter((row) => row.ranks && row.ranks.length > 1);
  if (!ranked.length) return show(figure, null, 'Requires two variants with two seeds each.');
  const mean = (row) => average(row.ranks);
  ranked.sort((a, b) => a.point - b.point || mean(a) - mean(b));
  const most = Math.max(...ranked.flatMap((row) => row.ranks));
  const { root, X, at, step } = rowChart(figure, ranked, [0.5, most + 0.5], options.axisName);
  const marks = ranked.map((row, index) => {
    const y = at(index);
    root.append(svg('path', { d: `M${X(Math.min(...row.ranks))},${y}H${X(Math.max(...row.ranks))}`, stroke: color(row.verdict), 'stroke-width': 2 }));
    for (const rank of row.ranks) root.append(svg('path', { d: `M${X(rank)},${y - 5}v10`, stroke: color(row.verdict), 'stroke-width': 1.5 }));
    root.append(marker(X(mean(row)), y, row.verdict));
    return { x: X(mean(row)), y, row };
  });
  show(figure, root, `Mean ranks over the seeds: ${ranked.map((row) => `${row.label} ${mean(row).toFixed(1)}`).join('; ')}`);
  exploreRows(figure, root, marks, step, options.lines);
}

/**
 * Draws one point per row: quality against a cost, or against a published result.
 * `options`: {x: row -> number, xAxis, yAxis, front, intervals, lit, named: row -> whether to prefer its name, lines, empty, text}.
 */
function drawPoints(figure, rows, options) {
  const placed = rows.filter((row) => isNumber(row.mean) && isNumber(options.x(row)));
  if (!placed.length) return show(figure, null, options.empty);
  const [width, height] = chartSize(figure);
  const ends = options.intervals ? placed.flatMap((row) => [row.low, row.high]) : [];
  const { root, body, X, Y, box } = frame(width, height,
    { range: extent(placed.map(options.x), 0.08), name: options.xAxis },
    { range: extent([...ends, ...placed.map((row) => row.mean)], 0.1), name: options.yAxis }, 16);
  for (const point of options.front ? new Set(placed.map((row) => row.point)) : []) {
    const front = placed.filter((row) => row.point === point && options.front(row)).sort((a, b) => options.x(a) - options.x(b));
    const path = front.map((row, index) => index ? `H${X(options.x(row))}V${Y(row.mean)}` : `M${X(options.x(row))},${Y(row.mean)}`);
    if (front.length > 1) body.append(svg('path', { class: 'front', d: path.join('') }));
  }
  const marks = placed.map((row) => ({ x: X(options.x(row)), y: Y(row.mean), row }));
  for (const { x, y, row } of [...marks].sort((a, b) => (a.row.verdict === 'baseline') - (b.row.verdict === 'baseline'))) {
    const group = svg('g', { class: options.lit && !options.lit(row) ? 'faint' : null });
    if (options.intervals && isNumber(row.low)) group.append(svg('path', { d: `M${x},${Y(row.low)}V${Y(row.high)}`, stroke: color(row.verdict), 'stroke-opacity': 0.5 }));
    group.append(marker(x, y, row.verdict));
    body.append(group);
  }
  const named = marks.filter(({ row }) => row.verdict === 'baseline' || options.named(row) || marks.length < 13);
  placeNames(root, marks, named.sort((a, b) => (a.row.verdict !== 'baseline') - (b.row.verdict !== 'baseline')), box, width);
  show(figure, root, options.text);
  const stops = [...marks].sort((a, b) => a.x - b.x);
  exploreTips(figure, root, nearest(marks, 24), stops, (mark) => options.lines(mark.row));
}

/** Returns the mean and range of the runs at the steps that they have in common. */
function band(runs) {
  const shared = runs[0].points.filter((point) => runs.every((run) => run.at.has(point.step)));
  return shared.map(({ step }) => {
    const points = runs.map((run) => run.at.get(step));
    const values = points.map((point) => point.value);
    // The median, as the seconds of the seed that compiles include compilation.
    const xs = points.map((point) => point.x).sort((a, b) => a - b);
    return { step, x: xs[Math.floor((xs.length - 1) / 2)], value: average(values), low: Math.min(...values), high: Math.max(...values) };
  });
}

/** The range of the x axis of learning curves: from their first point, or from half of their last. */
function curveRange(curves, late) {
  const xs = curves.flatMap((curve) => [...curve.mean, ...curve.runs.flatMap((run) => run.points)]).map((point) => point.x);
  const [first, last] = extent(xs, 0);
  // A single point is drawn at the right end.
  return [first === last ? 0 : late ? Math.max(first, last / 2) : first, last];
}

/**
 * Draws lines: learning curves or sensitivity curves, the lit ones in colour and with their spread.
 * `series`: [{label, color, dash, lit, mean: [{x, value, low, high}], runs: [{seed, status, points: [{x, value}]}]}],
 * in the order of drawing; `options`: {xAxis: {range, name, log}, yName, empty, text, lines(curve, run, point), pick(curve)}.
 */
function drawLines(figure, series, options) {
  const lit = series.filter((curve) => curve.lit);
  const values = (curves) => curves.flatMap((curve) => [...curve.runs.flatMap((run) => run.points), ...curve.mean.flatMap(
    (point) => [point, { x: point.x, value: point.low }, { x: point.x, value: point.high }])]).filter((point) => point.x >= options.xAxis.range[0]);
  const all = values(lit.length ? lit : series);
  if (!all.length) return show(figure, null, options.empty);
  const [width, height] = chartSize(figure, 480);
  const labels = width > 640 && lit.length <= 12;
  const right = labels ? Math.min(200, 20 + 6.8 * Math.max(0, ...lit.map((curve) => curve.label.length))) : 12;
  const { root, body, X, Y, box } = frame(width, height, options.xAxis,
    { range: extent(all.map((point) => point.value), 0.04), name: options.yName }, right);
  const line = (points, y) => points.map((point, index) => `${index ? 'L' : 'M'}${X(point.x).toFixed(1)},${Y(y(point)).toFixed(1)}`).join('');
  const stroke = (curve, weight) => ({ fill: 'none', stroke: curve.lit ? curve.color : 'var(--faint)', 'stroke-width': weight, 'stroke-linejoin': 'round' });
  const marks = [];
  const ends = [];
  const mark = (curve, run, point, path) => ({ x: X(point.x), y: Y(point.value), point, run, curve, path });
  for (const curve of series) {
    if (curve.lit && curve.mean.length > 1) {
      const edge = line(curve.mean, (at) => at.high ?? at.value) + line([...curve.mean].reverse(), (at) => at.low ?? at.value).replace('M', 'L') + 'Z';
      body.append(svg('path', { d: edge, fill: curve.color, 'fill-opacity': 0.1, stroke: 'none' }));
    }
    for (const run of curve.lit ? curve.runs : []) {
      const path = svg('path', { d: line(run.points, (at) => at.value), 'stroke-opacity': 0.35, ...stroke(curve, 0.75) });
      body.append(path);
      marks.push(...run.points.filter((point) => point.x >= options.xAxis.range[0]).map((point) => mark(curve, run, point, path)));
      const last = run.points[run.points.length - 1];
      if (run.status === 'diverged') body.append(svg('path', { d: `M${X(last.x) - 4},${Y(last.value) - 4}l8,8m0,-8l-8,8`, ...stroke(curve, 2) }));
    }
    if (!curve.mean.length) continue;
    const path = svg('path', { class: curve.lit ? 'mean' : 'context', d: line(curve.mean, (at) => at.value), 'stroke-dasharray': curve.lit ? curve.dash : null, ...stroke(curve, curve.lit ? 2 : 1) });
    body.append(path);
    for (const { x, value } of curve.mean.filter((point) => point.dot)) body.append(svg('circle', { cx: X(x), cy: Y(value), r: 3, fill: curve.lit ? curve.color : 'var(--faint)' }));
    if (!curve.lit || !curve.runs.length) marks.push(...curve.mean.map((point) => mark(curve, null, point, path)));
    ends.push(mark(curve, null, curve.mean[curve.mean.length - 1], path));
  }
  if (labels) nameEnds(root, ends.filter((end) => end.curve.lit), box);
  show(figure, root, options.text);
  let found = null;
  const before = {};
  const dot = svg('circle', { r: 4, visibility: 'hidden' });
  root.append(dot);
  explore(figure, root, nearest(marks, 60), ends.reverse(), (next) => {
    if (found) make(found.path, before, []);
    if (found) found.path.classList.remove('lit');
    found = next;
    body.classList.toggle('dim', Boolean(found));
    if (found) {
      for (const name of ['stroke', 'stroke-width', 'stroke-opacity']) before[name] = found.path.getAttribute(name) ?? 1;
      found.path.classList.add('lit');
      make(found.path, { stroke: found.curve.color, 'stroke-width': 2.5, 'stroke-opacity': 1 }, []);
    }
    make(dot, found ? { cx: found.x, cy: found.y, fill: found.curve.color, visibility: 'visible' } : { visibility: 'hidden' }, []);
    tip(figure, found && options.lines(found.curve, found.run, found.point), found && found.x, found && found.y);
  });
  root.addEventListener('click', () => { if (found) options.pick(found.curve); });
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
    const { label, color: fill } = end.curve;
    const text = svg('text', { x: box.right + 10, y: end.at + 4 }, cut(label, 27), svg('title', {}, label));
    text.style.fill = fill;
    root.append(text);
  }
}
