function fillHeader() {
  byId('name').textContent = data.name;
  byId('result').textContent = data.result;
  const partial = data.ended < data.trials;
  const bar = html('div', {});
  bar.style.width = `${100 * data.ended / Math.max(1, data.trials)}%`;
  byId('progress').append(html('p', { class: 'soft' }, `${partial ? 'Partial report: ' : ''}${data.progress}.`), partial ? html('div', { class: 'track' }, bar) : '');
  if (data.warning) byId('progress').append(html('p', {}, html('b', {}, 'Warning: '), data.warning));
  for (const line of data.damaged) byId('progress').append(html('p', {}, html('b', {}, 'Damaged: '), line));
  if (data.look) byId('progress').append(html('p', {}, html('b', {}, data.look)));
}

function fillTexts() {
  const texts = {
    method: data.method,
    details: data.details,
    'verdicts-caption': verdictsCaption,
    'forest-caption': differencesCaption(', in the order of the table'),
    'scatter-caption': `Mean ${data.metric} and median cost over the finished seeds, without intervals (the table of verdicts has them). Dashed: the Pareto front${data.points.length > 1 ? ' of each point of the grid' : ''}, on which no other variant is at least as good at no higher cost. ${symbols}`,
    'costs-method': [data.costs_method, data.load].filter(Boolean).join(' '),
    matched: `${data.budget.charAt(0).toUpperCase()}${data.budget.slice(1)}.${data.matched ? ' Deviation: from the baseline, relative.' : ''}`,
    config: data.config,
  };
  for (const [id, text] of Object.entries(texts)) byId(id).textContent = text;
  const stability = data.stability.length ? data.stability : ['Requires two variants with two seeds each.'];
  byId('tau').append(...stability.map((line) => html('p', {}, line)));
}

function fillTuning() {
  if (!data.tuning) return;
  byId('section-tuning').hidden = false;
  const { metric, seeds, trials, untuned } = data.tuning;
  byId('sensitivity-caption').textContent = `Mean ${metric} over the tuning seeds (${seeds.join(', ')}; not used for the verdicts) against the tuned hyperparameter; bands: 95 % t intervals. Dots: the best means. Each tuning seed chooses the value of one seed of the comparison, or of a block of seeds. ${trials} tuning trials.`;
  byId('tuned-caption').textContent = `Differences in ${data.metric} (${better}) with simultaneous ${data.confidence} confidence intervals before tuning (every variant at its own value${untuned ? `; ${untuned}` : '; not run'}) and after tuning (the verdicts of this report).`;
}

function fillPublished() {
  if (!data.published) return;
  byId('section-published').hidden = false;
  const { label, groups, agreements } = data.published;
  byId('published-caption').textContent = `Mean ${data.metric} against: ${label}. Vertical lines: 95 % t intervals of the means over the seeds. ${symbols} Spearman's rho of all variants: ${agreements.filter((item) => !item.group).map((item) => (data.points.length > 1 ? `${data.points[item.point]}: ` : '') + minus(item.text)).join('; ')}.`;
  choices(byId('group'), [['', 'all variants'], ...Object.keys(groups).map((name) => [name, name])]);
  byId('group-control').hidden = !Object.keys(groups).length;
  table(byId('agreements'), [
    ...(data.points.length > 1 ? [column('grid point', (item) => data.points[item.point], null, null)] : []),
    column('variants', (item) => item.group || 'all', null, null), column('n', (item) => item.n), column("Spearman's rho", (item) => item.rho, (value) => isNumber(value) ? minus(value.toFixed(2)) : 'not defined'),
    intervalColumn('95 % interval', (item) => item.low, (item) => item.high, (value) => minus(value.toFixed(2))),
    column('note', (item) => item.note, null, 'long'),
  ])(agreements);
}

function fillScaling() {
  byId('section-scaling').hidden = !data.scaling.length;
  choices(byId('law-variant'), data.scaling.map((fit, index) => [String(index), fit.variant]));
  byId('law-control').hidden = data.scaling.length < 2;
  fillLaw();
}

function fillFailures() {
  if (!data.unfinished.length) return byId('unfinished').replaceChildren(html('p', {}, 'None.'));
  const columns = [variantColumn, column('seed', (row) => row.seed), column('status', (row) => row.status, null, null), column('reason', (row) => row.reason, null, 'long')];
  return table(byId('unfinished'), columns)(data.unfinished);
}

function fillProvenance() {
  const facts = { ...data.versions, ...(data.load ? { load: data.load } : {}), 'earlier reports': data.reports };
  for (const [name, text] of Object.entries(facts)) byId('versions').append(html('dt', {}, name), html('dd', {}, text));
  for (const row of data.rows) {
    byId('changes').append(html('details', {}, html('summary', {}, `${row.label}: ${row.changes || 'no'} ${row.changes === 1 ? 'difference' : 'differences'}`), html('pre', {}, row.differences.join('\n') || '# the base config')));
  }
}

for (const fill of [fillHeader, fillTexts, fillTuning, fillPublished, fillScaling, fillFailures, fillProvenance]) fill();
choices(byId('verdict'), [['', 'all'], ['helps', 'helps'], ['hurts', 'hurts'], ...(data.margin === null ? [] : [['same', 'same']]), ['inconclusive', 'inconclusive'], ...(data.rows.some((row) => row.verdict === 'withheld') ? [['withheld', 'withheld']] : []), ['diverged', 'with diverged seeds']]);
choices(byId('point'), [['', 'all'], ...data.points.map((name, index) => [String(index), name])]);
byId('point-label').hidden = data.points.length < 2;
choices(byId('curve-metric'), data.curves.metrics.map((name) => [name, `${name.slice(name.indexOf('/') + 1)} (${name.split('/', 1)[0]})`]));
choices(byId('cost'), Object.entries(costAxes).filter(([cost]) => data.rows.some((row) => isNumber(row.costs[cost]))));
byId('filter').addEventListener('input', refilter);
const changes = { verdict: refilter, point: refilter, 'curve-metric': curves, 'curve-x': curves, 'curve-late': curves, cost: scatter, group: published, 'law-variant': () => { fillLaw(); scaling(); } };
for (const [id, update] of Object.entries(changes)) byId(id).addEventListener('change', update);
refilter();
redrawOnResize(draw);
// A printed page has the definitions and the differences of the variants, and charts of its width.
addEventListener('beforeprint', () => {
  for (const item of document.querySelectorAll('details:not(.screen)')) item.open = true;
  document.body.classList.add('printed');
  draw();
  for (const place of document.querySelectorAll('.cards')) place.classList.remove('cards');
});
// A closed table has no width.
for (const item of document.querySelectorAll('details')) {
  item.addEventListener('toggle', () => item.querySelectorAll('.scroll').forEach(fitTable));
}
addEventListener('afterprint', () => {
  document.body.classList.remove('printed');
  draw();
});
