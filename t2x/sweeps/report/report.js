const data = JSON.parse(document.getElementById('data').textContent);
const byId = (id) => document.getElementById(id);
const lower = data.goal === 'min';
const fixed = (value) => isNumber(value) ? minus(value.toFixed(data.digits)) : '';
const signed = (value) => isNumber(value) ? (value > 0 ? '+' : '') + fixed(value) : '';
const interval = (low, high, format) => isNumber(low) ? `${format(low)} to ${format(high)}` : '';
const probability = (p) => isNumber(p) ? (p < 0.001 ? '< 0.001' : p.toFixed(3)) : '';
const integer = (value) => isNumber(value) ? Math.round(value).toLocaleString('en') : '';
const percent = (value) => `${value > 0 ? '+' : ''}${minus((100 * value).toFixed(2))} %`;
const more = (seeds) => !seeds ? '' : seeds > 1000 ? 'more than 1000' : String(seeds);
const signs = { helps: '\u25b2', hurts: '\u25bc', same: '\u2248', inconclusive: '\u25cb', baseline: '' };
const rank = { helps: 0, hurts: 1, same: 2, inconclusive: 3, baseline: 4 };
const COSTS = { parameters: 'parameters', flops_per_token: 'FLOPs per token', flops: 'FLOPs of training', seconds: 'seconds of training steps', memory_bytes: 'memory (MiB)' };
for (const row of data.rows) if (row.costs.memory_bytes) row.costs.memory_bytes /= 2 ** 20;

/** A table whose columns ({name, text, sort, kind}) sort by their header buttons. */
function table(place, columns, rowClass, onSort) {
  const head = html('tr', {});
  const body = html('tbody', {});
  let rows = [];
  let by = null;
  let down = false;
  const fill = () => {
    const order = [...rows];
    if (by !== null) {
      const key = columns[by].sort;
      const missing = (value) => value === null || value === undefined || value === '';
      order.sort((a, b) => {
        const [left, right] = [key(a), key(b)];
        if (missing(left) || missing(right)) return missing(left) - missing(right);
        const side = typeof left === 'string' ? left.localeCompare(right, 'en', { numeric: true }) : left - right;
        return down ? -side : side;
      });
    }
    body.replaceChildren(...order.map((row) => html('tr', { class: rowClass ? rowClass(row) : null },
      ...columns.map((column) => {
        const cell = column.text(row);
        const content = html('td', { class: column.kind, title: column.hint ? cell : null }, cell);
        if (column.color) content.classList.add(...column.color(row));
        return content;
      }))));
    if (onSort) onSort(order);
  };
  columns.forEach((column, index) => {
    const button = html('button', { type: 'button' }, column.name);
    const cell = html('th', { class: column.kind === 'number' ? 'number' : null, scope: 'col' }, button);
    button.addEventListener('click', () => {
      down = by === index ? !down : false;
      by = index;
      head.querySelectorAll('th').forEach((header) => header.removeAttribute('aria-sort'));
      cell.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      fill();
    });
    head.append(cell);
  });
  place.replaceChildren(html('table', {}, html('thead', {}, head), body));
  return (newRows) => { rows = newRows; fill(); };
}

const column = (name, key, format, kind = 'number') => ({ name, text: (row) => format ? format(key(row)) : String(key(row) ?? ''), sort: key, kind });
const variantColumn = { name: 'variant', text: (row) => row.label ?? row.variant, sort: (row) => row.label ?? row.variant, kind: null, hint: true };
const verdictColumns = [
  variantColumn,
  column('difference', (row) => row.difference, signed),
  { name: `${data.confidence} interval`, text: (row) => interval(row.difference_low, row.difference_high, signed), sort: (row) => row.difference_low, kind: 'number' },
  { name: 'verdict', text: (row) => `${signs[row.verdict]} ${row.verdict}`.trim(), sort: (row) => rank[row.verdict], kind: null, color: (row) => [row.verdict] },
  column('p', (row) => row.p, probability),
  column('p (paired)', (row) => row.p_paired, probability),
  column('effect', (row) => row.effect, (value) => isNumber(value) ? (value > 0 ? '+' : '') + minus(value.toFixed(2)) : ''),
  { name: 'seeds', text: (row) => row.n === row.trials ? String(row.n) : `${row.n} of ${row.trials}`, sort: (row) => row.n, kind: 'number' },
  column(data.metric, (row) => row.mean, fixed),
  column('sd', (row) => row.std, fixed),
  column('more seeds', (row) => row.more_seeds || null, more),
  ...(data.rows.some((row) => row.note) ? [{ name: 'note', text: (row) => row.note, sort: (row) => row.note, kind: 'long' }] : []),
];
const budgetColumns = [
  variantColumn,
  column('parameters', (row) => row.costs.parameters, integer),
  column('FLOPs / token', (row) => row.costs.flops_per_token, (value) => short(value, 4, true)),
  column('steps', (row) => row.num_steps, integer),
  column('FLOPs', (row) => row.costs.flops, (value) => short(value, 3, true)),
  ...(data.matched ? [column('deviation', (row) => row.gap, percent), column('adjusted parameter', (row) => row.knob, null, null)] : []),
  column('seconds', (row) => row.costs.seconds, (value) => isNumber(value) ? value.toFixed(1) : ''),
  column('s / step', (row) => row.costs.step_seconds, (value) => short(value, 3)),
  column('compile (s)', (row) => row.costs.compile_seconds, (value) => isNumber(value) ? value.toFixed(1) : ''),
  column('tokens / s', (row) => row.costs.tokens_per_second, integer),
  column('memory (MiB)', (row) => row.costs.memory_bytes, integer),
  column('load', (row) => row.costs.load, (value) => isNumber(value) ? value.toFixed(1) : ''),
  column('concurrent trials', (row) => row.costs.at_once, (value) => isNumber(value) ? value.toFixed(1) : ''),
  { name: 'rank over seeds', text: (row) => row.ranks ? row.ranks.join(' to ') : '', sort: (row) => row.ranks && row.ranks[0] + row.ranks[1] / 1000, kind: 'number' },
];

let filtered = data.rows;
let sorted = data.rows;
const shown = new Map(); // Row index -> colour slot.
const isBaseline = (row) => row.verdict === 'baseline';

function lines(row) {
  const texts = [row.label, `${data.metric} ${fixed(row.mean)}, ${row.n} of ${row.trials} seeds`];
  if (isNumber(row.difference)) {
    const range = interval(row.difference_low, row.difference_high, signed);
    texts.push(`difference ${signed(row.difference)}${range ? `, ${data.confidence}: ${range}` : ''}`);
    texts.push(`${row.verdict}${isNumber(row.p) ? `, p ${probability(row.p)}` : ''}`);
  }
  if (row.note) texts.push(row.note);
  return texts;
}

const forest = () => drawForest(byId('forest'), sorted.filter((row) => !isBaseline(row)), { goal: data.goal, margin: data.margin, confidence: data.confidence, lines });

function scatter() {
  const cost = byId('cost').value;
  drawScatter(byId('scatter'), filtered, {
    cost, costName: COSTS[cost], metricName: `${data.metric} (${lower ? 'lower' : 'higher'} is better)`,
    lines: (row) => [...lines(row), `${COSTS[cost]} ${short(row.costs[cost], 4)}`],
  });
}

function slotStyle(index) {
  const row = data.rows[index];
  const slot = shown.get(index);
  if (isBaseline(row)) return { color: 'var(--ink)', dash: row.point ? [null, '6 3', '2 3'][row.point % 3] : null };
  return { color: `var(--c${slot % 6})`, dash: [null, '7 3', '2 3', '9 3 2 3'][Math.floor(slot / 6) % 4] };
}

function toggle(index, on) {
  if (!on) return shown.delete(index);
  if (shown.has(index)) return undefined;
  const taken = new Set([...shown].filter(([row]) => !isBaseline(data.rows[row])).map(([, slot]) => slot));
  let slot = 0;
  while (taken.has(slot)) slot++;
  return shown.set(index, isBaseline(data.rows[index]) ? -1 : slot);
}

/** Shows the baseline and at most five filtered rows: first those with a verdict, then the best. */
function showDefaults() {
  shown.clear();
  const sign = lower ? 1 : -1;
  const started = new Set(data.curves.runs.map((run) => run.row));
  const index = (row) => data.rows.indexOf(row);
  const others = filtered.filter((row) => !isBaseline(row) && started.has(index(row))).sort((a, b) =>
    (rank[a.verdict] > 1) - (rank[b.verdict] > 1) || sign * ((a.mean ?? sign * Infinity) - (b.mean ?? sign * Infinity)) || 0);
  const selected = others.slice(0, 5);
  const points = new Set((selected.length ? selected : filtered).map((row) => row.point));
  data.rows.forEach((row, at) => { if (isBaseline(row) && points.has(row.point)) toggle(at, true); });
  selected.sort((a, b) => index(a) - index(b)).forEach((row) => toggle(index(row), true));
}

function legend() {
  const started = new Set(data.curves.runs.map((run) => run.row));
  const available = data.rows.map((row, index) => index).filter(
    (index) => started.has(index) && (isBaseline(data.rows[index]) || filtered.includes(data.rows[index])));
  byId('legend').replaceChildren(...available.map((index) => {
    const on = shown.has(index);
    const { color, dash } = on ? slotStyle(index) : { color: 'var(--rule)', dash: null };
    const key = svg('svg', { viewBox: '0 0 22 8', 'aria-hidden': 'true' }, svg('line', { x1: 0, x2: 22, y1: 4, y2: 4, stroke: color, 'stroke-width': 2.5, 'stroke-dasharray': dash }));
    const button = html('button', { type: 'button', 'aria-pressed': String(on) }, key, data.rows[index].label);
    button.addEventListener('click', () => {
      const at = [...byId('legend').children].indexOf(button);
      toggle(index, !shown.has(index));
      legend();
      curves();
      byId('legend').children[at].focus();
    });
    return button;
  }));
}

function runPoints(run, split, metric, axis) {
  const part = run.splits[split];
  if (!part || !part.values[metric]) return [];
  return data.curves.steps[part.steps].map((step, index) => ({
    step, value: part.values[metric][index],
    x: { step, flops: step * run.work, seconds: part.seconds[index] }[axis],
  })).filter((point) => isNumber(point.value) && isNumber(point.x));
}

function curves() {
  const [name, axis] = [byId('curve-metric').value, byId('curve-x').value];
  const [split, metric] = [name.split('/', 1)[0], name.slice(name.indexOf('/') + 1)];
  const series = [...shown.keys()].map((index) => ({
    label: data.rows[index].label, ...slotStyle(index),
    runs: data.curves.runs.filter((run) => run.row === index).map((run) => {
      const points = runPoints(run, split, metric, axis);
      return { seed: run.seed, status: run.status, points, at: new Map(points.map((point) => [point.step, point])) };
    }).filter((run) => run.points.length),
  })).filter((curve) => curve.runs.length);
  // The baseline is drawn last, on top.
  series.reverse();
  drawCurves(byId('curves'), series, {
    late: byId('curve-late').checked, metricName: `${metric} (${split})`,
    xName: { step: 'steps', flops: 'FLOPs', seconds: 'seconds' }[axis],
    empty: data.curves.runs.length ? 'No selected variant has this metric.' : 'No trial has started.',
    lines: (curve, run, at) => [curve.label, `seed ${run.seed}${run.status === 'finished' ? '' : `, ${run.status}`}`,
      `${metric} ${short(at.value, 5)}`, `step ${at.step.toLocaleString('en')}${axis === 'step' ? '' : `, ${short(at.x, 4)} ${axis === 'flops' ? 'FLOPs' : 'seconds'}`}`],
  });
}

const fillVerdicts = table(byId('verdicts'), verdictColumns, (row) => isBaseline(row) ? 'baseline' : null, (order) => { sorted = order; forest(); });
const fillBudget = table(byId('budget'), budgetColumns, (row) => isBaseline(row) ? 'baseline' : null);

function refilter() {
  const words = byId('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  const [verdict, point] = [byId('verdict').value, byId('point').value];
  filtered = data.rows.filter((row) => words.every((word) => row.label.toLowerCase().includes(word))
    && (!verdict || row.verdict === verdict || (verdict === 'diverged' && row.diverged))
    && (point === '' || row.point === Number(point)));
  byId('shown').textContent = filtered.length === data.rows.length ? '' : `${filtered.length} of ${data.rows.length} rows`;
  fillVerdicts(filtered);
  fillBudget(filtered);
  showDefaults();
  legend();
  curves();
  scatter();
}

function fillPage() {
  byId('name').textContent = data.name;
  byId('question').append('Against ', html('b', {}, data.baseline), ` by ${data.metric} (${lower ? 'lower' : 'higher'} is better), ${data.matched ? `matched ${data.matched}` : 'no matched budget'}.`);
  const count = (verdict) => data.rows.filter((row) => row.verdict === verdict).length;
  const kinds = [['helps', count('helps') === 1 ? 'helps' : 'help'], ['hurts', count('hurts') === 1 ? 'hurts' : 'hurt'], ...(data.margin === null ? [] : [['same', count('same') === 1 ? 'is the same' : 'are the same']]), ['inconclusive', 'inconclusive']];
  kinds.forEach(([verdict, words], index) => byId('counts').append(index ? ', ' : '', html('b', { class: verdict }, `${signs[verdict]} ${count(verdict)}`), ` ${words}`));
  const partial = data.ended < data.trials;
  const bar = html('div', {});
  bar.style.width = `${100 * data.ended / Math.max(1, data.trials)}%`;
  byId('progress').append(html('p', { class: 'soft' }, `${partial ? 'Partial report: ' : ''}${data.progress}.`), partial ? html('div', { class: 'track' }, bar) : '');
  if (data.warning) byId('progress').append(html('p', {}, html('b', {}, 'Warning: '), data.warning));
  for (const line of data.damaged) byId('progress').append(html('p', {}, html('b', {}, 'Damaged: '), line));
  if (data.look) byId('progress').append(html('p', {}, html('b', {}, data.look)));
  byId('method').textContent = data.method;
  byId('details').textContent = data.details;
  byId('forest-caption').textContent = `${data.metric}, variant \u2212 baseline, mean over paired seeds with simultaneous ${data.confidence} intervals. Filled: helps, hurts or same.${data.margin === null ? '' : ` Shaded: differences within the margin of ${data.margin}.`} In the order of the table.`;
  byId('scatter-caption').textContent = `Mean quality and median cost of the finished seeds. Dashed: the Pareto front${data.points.length > 1 ? ' of each point of the grid' : ''}; for any point off the front, another variant is at least as good at no higher cost.`;
  const deviation = Math.max(0, ...data.rows.map((row) => Math.abs(row.gap)));
  byId('matched').textContent = data.matched ? `Matched: ${data.matched}. Largest deviation from the baseline: ${(100 * deviation).toFixed(2)} %.` : 'No budget was matched.';
  byId('costs-method').textContent = [data.costs_method, data.load].filter(Boolean).join(' ');
  if (data.unfinished.length) {
    table(byId('unfinished'), [variantColumn, column('seed', (row) => row.seed), column('status', (row) => row.status, null, null), { name: 'reason', text: (row) => row.reason, sort: (row) => row.reason, kind: 'long' }])(data.unfinished);
  } else byId('unfinished').replaceChildren(html('p', {}, 'None.'));
  data.taus.forEach((tau, index) => {
    const at = data.points[index] ? `${data.points[index]}: m` : 'M';
    byId('tau').append(html('span', {}, isNumber(tau) ? `${at}ean Kendall tau of the variants between two seeds: ${minus(tau.toFixed(2))} (1: all seeds agree). ` : ''));
  });
  if (!data.taus.some(isNumber)) byId('tau').textContent = 'Requires two variants with two seeds each.';
  for (const row of data.rows) {
    byId('changes').append(html('details', {}, html('summary', {}, `${row.label}: ${row.changes || 'no'} ${row.changes === 1 ? 'difference' : 'differences'}`), html('pre', {}, row.differences.join('\n') || '# the base config')));
  }
  byId('config').textContent = data.config;
  for (const [name, version] of Object.entries(data.versions)) byId('versions').append(html('dt', {}, name), html('dd', {}, version));
}

function choices(select, pairs) {
  select.replaceChildren(...pairs.map(([value, name]) => html('option', { value }, name)));
}

fillPage();
choices(byId('verdict'), [['', 'all'], ['helps', 'helps'], ['hurts', 'hurts'], ...(data.margin === null ? [] : [['same', 'same']]), ['inconclusive', 'inconclusive'], ['diverged', 'with diverged seeds']]);
choices(byId('point'), [['', 'all'], ...data.points.map((name, index) => [String(index), name])]);
byId('point-label').hidden = data.points.length < 2;
choices(byId('curve-metric'), data.curves.metrics.map((name) => [name, `${name.slice(name.indexOf('/') + 1)} (${name.split('/', 1)[0]})`]));
choices(byId('cost'), Object.entries(COSTS).filter(([cost]) => data.rows.some((row) => isNumber(row.costs[cost]))));
byId('filter').addEventListener('input', refilter);
for (const id of ['verdict', 'point']) byId(id).addEventListener('change', refilter);
for (const id of ['curve-metric', 'curve-x', 'curve-late']) byId(id).addEventListener('change', curves);
byId('cost').addEventListener('change', scatter);
refilter();
let width = document.documentElement.clientWidth;
new ResizeObserver(() => {
  if (document.documentElement.clientWidth === width) return;
  width = document.documentElement.clientWidth;
  forest();
  curves();
  scatter();
}).observe(document.documentElement);
