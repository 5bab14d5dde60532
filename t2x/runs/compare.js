const MOST_SHOWN = 12;
const shown = new Set(data.runs.map((_, index) => index).slice(0, MOST_SHOWN));

function runTable() {
  const number = (text) => html('td', { class: 'number' }, text);
  const columns = [['run'], ['state'], ['step', 'number'], ['metric'], ['best', 'number'], ['at step', 'number'], ['last', 'number'], ['train loss', 'number'], ['host'], ['reason']];
  const count = (value) => isNumber(value) ? value.toLocaleString('en') : '';
  byId('runs').append(html('table', {},
    html('thead', {}, html('tr', {}, ...columns.map(([name, kind]) => html('th', { class: kind, scope: 'col' }, name)))),
    html('tbody', {}, ...data.runs.map((run, index) => html('tr', {},
      html('td', { title: run.name }, legendKey(lineStyle(index)), run.name),
      html('td', { class: run.state }, run.state),
      number(isNumber(run.num_steps) ? `${count(run.step ?? 0)} of ${count(run.num_steps)}` : count(run.step)),
      html('td', {}, run.metric),
      number(short(run.best, 5)), number(count(run.best_step)), number(short(run.last, 5)), number(short(run.train_loss, 5)),
      html('td', {}, run.host), html('td', { class: 'long' }, run.reason))))));
}

function points(run, split, metric, axis) {
  const curve = Object.hasOwn(run.splits, split) ? run.splits[split] : null;
  if (!curve || !Object.hasOwn(curve.values, metric)) return [];
  return curve.steps.map((step, index) => ({
    step, value: curve.values[metric][index], seconds: curve.seconds[index], x: axis === 'step' ? step : curve.seconds[index],
  })).filter((point) => isNumber(point.value) && isNumber(point.x));
}

function curves() {
  const [split, metric] = data.metrics[byId('metric').value] ?? ['', ''];
  const axis = byId('axis').value;
  const all = data.runs.map((run) => points(run, split, metric, axis));
  // The first run is drawn last, on top. A single point is a dot.
  const series = [...shown].sort((a, b) => b - a).filter((index) => all[index].length).map((index) => ({
    label: data.runs[index].name, lit: true, ...lineStyle(index), runs: [],
    mean: all[index].length === 1 ? [{ ...all[index][0], dot: true }] : all[index],
  }));
  const xName = { step: 'steps', seconds: 'seconds of training' }[axis];
  drawLines(byId('curves'), series, {
    xAxis: { range: curveRange(series, byId('late').checked), name: xName }, yName: `${metric} (${split})`,
    empty: data.metrics.length ? 'No selected run has this metric.' : 'No run has metrics.',
    text: `${metric} (${split}) against ${xName}; last values: ${series.map((curve) => `${curve.label} ${short(curve.mean[curve.mean.length - 1].value, 4)}`).join('; ')}`,
    pick: () => {},
    lines: (curve, _, at) => [curve.label, `${metric} ${short(at.value, 5)}`,
      `step ${at.step.toLocaleString('en')}${isNumber(at.seconds) ? `, ${short(at.seconds, 4)} seconds` : ''}`],
  });
  const without = data.runs.filter((_, index) => !all[index].length).map((run) => run.name);
  const what = axis === 'step' || !all.some((each) => each.length) ? `${metric} (${split})` : `times of ${metric} (${split})`;
  byId('without').textContent = without.length && data.metrics.length ? `Without ${what}: ${without.join(', ')}.` : '';
}

function legend() {
  fillLegend(byId('legend'), data.runs.map((run, index) => ({ index, label: run.name, lit: shown.has(index), ...lineStyle(index) })), (index) => {
    if (!shown.delete(index)) shown.add(index);
    legend();
    curves();
  });
}

/** Allows line breaks before the dots of a path. */
const pathParts = (path) => path.split('.').flatMap((part, index) => index ? [html('wbr'), `.${part}`] : [part]);

function differenceTable() {
  const reference = data.runs[data.reference];
  const note = byId('differences-note');
  if (!reference) note.textContent = 'No config can be read.';
  else if (data.runs.length === 1) note.textContent = 'One run: there is no other config to compare with.';
  else if (!data.differences.length) note.textContent = 'No difference.';
  else note.textContent = `Settings that differ from those of ${reference.name}; =: no difference at this path.`;
  if (!data.differences.length) return;
  const others = data.runs.map((_, index) => index).filter((index) => index !== data.reference);
  byId('differences').append(html('table', {},
    html('thead', {}, html('tr', {}, ...['setting', reference.name, ...others.map((index) => data.runs[index].name)].map((name) => html('th', { scope: 'col' }, name)))),
    html('tbody', {}, ...data.differences.map((row) => html('tr', {}, html('td', {}, ...pathParts(row.path)), html('td', {}, row.first),
      ...others.map((index) => row.values[index] ? html('td', {}, row.values[index])
        : html('td', { class: 'same' }, data.runs[index].has_config ? '=' : '?')))))));
}

for (const problem of data.problems) byId('problems').append(html('p', {}, html('b', {}, 'Warning: '), problem));
runTable();
choices(byId('metric'), data.metrics.map(([split, name], index) => [index, `${name} (${split})`]));
legend();
curves();
differenceTable();
for (const id of ['metric', 'axis', 'late']) byId(id).addEventListener('change', curves);
redrawOnResize(curves);
