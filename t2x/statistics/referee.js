const compared = data.rows.filter((row) => !isBaseline(row));
const count = (verdict) => compared.filter((row) => row.verdict === verdict).length;
byId('result').textContent = `${data.metric} (${better}) against ${data.baseline}: ${Object.keys(rank).filter(count).map((verdict) => `${count(verdict)} ${verdict}`).join(', ')}.`;
byId('verdicts-caption').textContent = `Differences in ${data.metric} (${better}), variant \u2212 baseline, means over paired ${data.unit}s, with simultaneous ${data.confidence} confidence intervals. Click on a header to sort.`;
byId('forest-caption').textContent = `Differences in ${data.metric} with simultaneous ${data.confidence} confidence intervals.${data.margin === null ? '' : ` Shaded: differences within the margin of ${data.margin}, which count as none.`} Arrows: the interval continues. ${symbols}`;
const columns = [
  ...verdictColumns.slice(0, 4),
  column('p', (row) => row.p, probability),
  column('plain p', (row) => row.p_plain, probability),
  column(`more ${data.unit}s`, (row) => row.more_seeds || null, more),
  ...verdictColumns.slice(4),
];
const draw = () => drawForest(byId('forest'), compared, {
  goal: data.goal, margin: data.margin, confidence: data.confidence, axisName: `difference in ${data.metric} (variant \u2212 baseline)`, lines,
});
table(byId('verdicts'), columns, baselineClass)(data.rows);
byId('sentences').append(...data.sentences.map((line) => html('p', {}, line)));
byId('section-multipliers').hidden = !data.multipliers.length;
byId('multipliers').append(...data.multiplier_lines.map((line) => html('p', {}, line)));
draw();
redrawOnResize(draw);
