const compared = data.rows.filter((row) => !isBaseline(row));
const count = (verdict) => compared.filter((row) => row.verdict === verdict).length;
byId('result').textContent = `${data.metric} (${better}) against ${data.baseline}: ${Object.keys(rank).filter(count).map((verdict) => `${count(verdict)} ${verdict}`).join(', ')}.`;
byId('verdicts-caption').textContent = verdictsCaption;
byId('forest-caption').textContent = differencesCaption();
const columns = [
  ...verdictColumns.slice(0, 4),
  column('p', (row) => row.p, probability),
  column('plain p', (row) => row.p_plain, probability),
  column(`more ${unit}`, (row) => row.more_seeds || null, more),
  ...verdictColumns.slice(4),
];
const draw = () => drawDifferences(byId('forest'), data.rows);
table(byId('verdicts'), columns, baselineClass)(data.rows);
byId('sentences').append(...data.sentences.map((line) => html('p', {}, line)));
byId('section-multipliers').hidden = !data.multipliers.length;
byId('multipliers').append(...data.multiplier_lines.map((line) => html('p', {}, line)));
draw();
redrawOnResize(draw);
