let filtered = data.rows;
let sorted = data.rows;
const shown = new Map(); // Row index -> colour slot.
const started = new Set(data.curves.runs.map((run) => run.row));

function forest() {
  drawDifferences(byId('forest'), sorted);
}

function ranks() {
  drawRanks(byId('ranks'), filtered, {
    axisName: `rank by ${data.metric} (1: best)`,
    lines: (row) => [row.label, `mean rank ${average(row.ranks).toFixed(1)}`, `at the seeds: ${row.ranks.join(', ')}`],
  });
}

function scatter() {
  const cost = byId('cost').value;
  if (!cost) return show(byId('scatter'), null, 'No finished trial has recorded its cost.');
  const axis = costAxes[cost];
  return drawPoints(byId('scatter'), filtered, {
    x: (row) => row.costs[cost], xAxis: axis, yAxis: `mean ${data.metric} (${better})`,
    front: (row) => row.fronts.includes(cost), named: (row) => row.fronts.includes(cost),
    empty: 'No finished trial has recorded this cost.', text: `${data.metric} against ${axis}; the table below has the values`,
    lines: (row) => [...lines(row), `${axis} ${short(row.costs[cost], 4)}`],
  });
}

function published() {
  if (!data.published) return;
  const { label, goal, groups } = data.published;
  const group = groups[byId('group').value];
  const member = (row) => !group || group.includes(row.variant);
  drawPoints(byId('published'), filtered, {
    x: (row) => row.published, xAxis: `${label} (${goal === 'min' ? 'lower' : 'higher'} is better)`, yAxis: `mean ${data.metric} (${better})`,
    intervals: true, lit: member, named: member,
    empty: 'No variant has both a published and a measured result.', text: `${data.metric} against ${label}: ${data.published.agreements.map((item) => `${item.group || 'all variants'} ${item.text}`).join('; ')}`,
    lines: (row) => [...lines(row), `published: ${short(row.published, 5)}`],
  });
}

function slotStyle(index) {
  const row = data.rows[index];
  const slot = shown.get(index);
  if (isBaseline(row)) return { color: 'var(--ink)', dash: dashes[row.point % dashes.length] };
  return slot === undefined ? { color: 'var(--soft)', dash: null } : lineStyle(slot);
}

function toggle(index) {
  if (isBaseline(data.rows[index])) return;
  if (shown.delete(index)) return;
  const taken = new Set(shown.values());
  let slot = 0;
  while (taken.has(slot)) slot++;
  shown.set(index, slot);
}

/** Selects at most five filtered rows: first those with a verdict, then the best. The baselines are always shown. */
function selectDefaults() {
  shown.clear();
  const sign = lower ? 1 : -1;
  const index = (row) => data.rows.indexOf(row);
  const others = filtered.filter((row) => !isBaseline(row) && (started.has(index(row)) || data.tuning)).sort((a, b) =>
    (rank[a.verdict] > 1) - (rank[b.verdict] > 1) || sign * ((a.mean ?? sign * Infinity) - (b.mean ?? sign * Infinity)) || 0);
  others.slice(0, 5).map(index).sort((a, b) => a - b).forEach(toggle);
}

/** Indices of the rows in the charts of curves, in the order of drawing: context, selected rows, baselines. */
function drawn() {
  const points = new Set(filtered.map((row) => row.point));
  const order = (index) => isBaseline(data.rows[index]) ? 2 : Number(shown.has(index));
  return data.rows.map((row, index) => index).filter((index) => points.has(data.rows[index].point)
    && (isBaseline(data.rows[index]) || filtered.includes(data.rows[index]))).sort((a, b) => order(a) - order(b));
}

function legends() {
  for (const legend of document.querySelectorAll('.legend')) {
    fillLegend(legend, drawn().sort((a, b) => a - b).map(series), pick);
  }
}

function pick(index) {
  toggle(index);
  legends();
  curves();
  sensitivity();
}

function runPoints(run, split, metric, axis) {
  const part = run.splits[split];
  if (!part || !part.values[metric]) return [];
  return data.curves.steps[part.steps].map((step, index) => ({
    step, value: part.values[metric][index],
    x: { step, flops: step * run.work, seconds: part.seconds[index] }[axis],
  })).filter((point) => isNumber(point.value) && isNumber(point.x));
}

const series = (index) => ({ index, label: data.rows[index].label, fixed: isBaseline(data.rows[index]), lit: shown.has(index) || isBaseline(data.rows[index]), ...slotStyle(index) });

function curves() {
  const [name, axis] = [byId('curve-metric').value, byId('curve-x').value];
  const [split, metric] = [name.split('/', 1)[0], name.slice(name.indexOf('/') + 1)];
  const units = { step: 'steps', flops: 'FLOPs of training', seconds: 'seconds' };
  const all = drawn().map((index) => {
    const runs = data.curves.runs.filter((run) => run.row === index).map((run) => {
      const points = runPoints(run, split, metric, axis);
      return { seed: run.seed, status: run.status, points, at: new Map(points.map((point) => [point.step, point])) };
    }).filter((run) => run.points.length);
    const finished = runs.filter((run) => run.status === 'finished');
    const members = finished.length ? finished : runs.filter((run) => run.status === 'running');
    return { ...series(index), runs, mean: members.length ? band(members) : [] };
  }).filter((curve) => curve.runs.length);
  drawLines(byId('curves'), all, {
    xAxis: { range: curveRange(all, byId('curve-late').checked), name: units[axis] }, yName: `${metric} (${split})`,
    empty: data.curves.runs.length ? 'No selected variant has this metric.' : 'No trial has started.',
    text: `${metric} (${split}) against ${units[axis]}; last means: ${all.filter((curve) => curve.lit && curve.mean.length).map((curve) => `${curve.label} ${short(curve.mean[curve.mean.length - 1].value, 4)}`).join('; ')}`,
    pick: (curve) => pick(curve.index),
    lines: (curve, run, at) => [curve.label, run ? `seed ${run.seed}${run.status === 'finished' ? '' : `, ${run.status}`}` : 'mean over the seeds',
      `${metric} ${short(at.value, 5)}`, `step ${at.step.toLocaleString('en')}${axis === 'step' ? '' : `, ${short(at.x, 4)} ${axis === 'flops' ? 'FLOPs' : 'seconds'}`}`],
  });
}

function sensitivity() {
  if (!data.tuning) return;
  const { rows } = data.tuning;
  const all = drawn().map((index) => {
    const mean = rows[index].curve.filter((point) => isNumber(point.mean)).map(
      (point) => ({ ...point, x: point.value, value: point.mean, dot: point.value === rows[index].chosen }));
    return { ...series(index), runs: [], mean };
  }).filter((curve) => curve.mean.length);
  const values = all.flatMap((curve) => curve.mean.map((point) => point.x));
  const log = values.every((value) => value > 0);
  drawLines(byId('sensitivity'), all, {
    xAxis: { range: extent(values, 0.04, log), name: `${tunedParameters.length === 1 ? tunedParameters[0] : 'tuned value'}${log ? ' (log scale)' : ''}`, log },
    yName: `mean ${data.metric} (${better})`, empty: 'No tuning trial has finished.',
    text: `${data.metric} against ${tunedParameters.join(', ')}; tuned values: ${rows.map((row) => `${row.label} ${row.tuned}`).join('; ')}`,
    pick: (curve) => pick(curve.index),
    lines: (curve, _, at) => [curve.label, `${rows[curve.index].parameter} = ${short(at.x, 4)}${at.dot ? ' (best mean)' : ''}`,
      `${data.metric} ${fixed(at.value)}${isNumber(at.low) ? `, 95 %: ${interval(at.low, at.high, fixed)}` : ''}`,
      `${at.n} ${at.n === 1 ? 'seed' : 'seeds'}${at.diverged ? `, ${at.diverged} diverged` : ''}, chosen by ${at.chosen_by}`],
  });
}

const sizeName = (size) => size.label || `${short(size.parameters)} parameters, ${short(size.tokens)} tokens`;
const shownLaw = () => data.scaling[Number(byId('law-variant').value)];

function scaling() {
  const fit = shownLaw();
  if (!fit) return;
  drawScaling(byId('scaling'), fit, {
    metric: data.metric,
    lines: (size) => [sizeName(size), isNumber(size.mean) ? `measured ${fixed(size.mean)}${size.used ? '' : ', not used for the fit'}` : 'not measured',
      `predicted ${fixed(size.prediction.value)} (${interval(size.prediction.low, size.prediction.high, fixed)})`],
  });
}

function fillLaw() {
  const fit = shownLaw();
  if (!fit) return;
  byId('law').textContent = `${fit.formula}, with L: ${data.metric}, N: parameters (embeddings included), D: training tokens (padding included); fitted to ${fit.sizes.filter((size) => size.used).length} sizes with ${fit.seeds} seeds each. ${fit.note}`;
  table(byId('constants'), [column('constant', (item) => item.name, null, null), column('value', (item) => item.value, (value) => short(value, 4)),
    intervalColumn('95 % interval', (item) => item.low, (item) => item.high, (value) => short(value, 4))])(fit.constants);
  table(byId('sizes'), [column('size', sizeName, null, null), column('parameters', (size) => size.parameters, integer), column('tokens', (size) => size.tokens, integer),
    column(`mean ${data.metric}`, (size) => size.mean, fixed), column('predicted', (size) => size.prediction.value, fixed),
    intervalColumn('95 % interval', (size) => size.prediction.low, (size) => size.prediction.high, fixed),
    column('role', (size) => size.used ? 'fitted' : isNumber(size.mean) ? 'not used for the fit' : 'not measured', null, null)])(fit.sizes);
}

const fillVerdicts = table(byId('verdicts'), verdictColumns, baselineClass, (order) => { sorted = order; forest(); });
const fillTests = table(byId('tests'), testColumns, baselineClass);
const fillCosts = table(byId('costs'), costColumns, baselineClass);
const fillBudget = table(byId('budget'), budgetColumns, baselineClass);
const fillTuned = table(byId('tuned'), tunedColumns, (row) => row.after.verdict === 'baseline' ? 'baseline' : null);

function draw() {
  for (const place of document.querySelectorAll('.scroll')) fitTable(place);
  for (const figure of [forest, curves, sensitivity, ranks, published, scaling, scatter]) figure();
}

function refilter() {
  const words = byId('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  const [verdict, point] = [byId('verdict').value, byId('point').value];
  filtered = data.rows.filter((row) => words.every((word) => row.label.toLowerCase().includes(word))
    && (!verdict || row.verdict === verdict || (verdict === 'diverged' && row.diverged))
    && (point === '' || row.point === Number(point)));
  byId('shown').textContent = filtered.length === data.rows.length ? '' : `${filtered.length} of ${data.rows.length} rows`;
  selectDefaults();
  legends();
  fillVerdicts(filtered);
  fillTests(filtered);
  fillCosts(filtered);
  fillBudget(filtered);
  if (data.tuning) fillTuned(filtered.map((row) => data.tuning.rows[data.rows.indexOf(row)]));
  draw();
}
