// Cells, columns, tables and figures of variants and their verdicts. `data` has metric, goal, margin, digits, confidence
// and most_seeds.
// What is paired: seeds, unless the data names another unit.
const unit = `${data.unit || 'seed'}s`;
const lower = data.goal === 'min';
const better = `${lower ? 'lower' : 'higher'} is better`;
const fixed = (value) => isNumber(value) ? minus(value.toFixed(data.digits)) : '';
const signed = (value) => isNumber(value) ? (value > 0 ? '+' : '') + fixed(value) : '';
const interval = (low, high, format) => isNumber(low) ? `${format(low)} to ${format(high)}` : '';
// A bound of 0 beside a verdict is that of the step-down test.
const differenceInterval = (row) => {
  const decided = row.verdict === 'helps' || row.verdict === 'hurts';
  if (!isNumber(row.difference_low)) return '';
  return `${decided && row.difference_low === 0 ? '> 0' : signed(row.difference_low)} to ${decided && row.difference_high === 0 ? '< 0' : signed(row.difference_high)}`;
};
const probability = (p) => isNumber(p) ? (p < 0.001 ? '< 0.001' : p.toFixed(3)) : '';
const integer = (value) => isNumber(value) ? Math.round(value).toLocaleString('en') : '';
const percent = (value) => isNumber(value) ? `${value > 0 ? '+' : ''}${minus((100 * value).toFixed(2))} %` : '';
const tenths = (value) => isNumber(value) ? value.toFixed(1) : '';
const more = (seeds) => !seeds ? '' : seeds > data.most_seeds ? `more than ${data.most_seeds}` : String(seeds);
const signs = { helps: '\u25b2', hurts: '\u25bc', same: '\u25a0', inconclusive: '\u25cb', withheld: '\u25cb', baseline: '\u25c6' };
const rank = { helps: 0, hurts: 1, same: 2, inconclusive: 3, withheld: 4, baseline: 5 };
const isBaseline = (row) => row.verdict === 'baseline';
const verdictText = (verdict) => `${signs[verdict]} ${verdict}`;

/** Shows a table that is wider than its place as cards, one per row. */
function fitTable(place) {
  place.classList.remove('cards');
  if (place.scrollWidth > place.clientWidth + 1) place.classList.add('cards');
}

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
        const content = html('td', { class: column.kind, title: column.hint ? cell : null, 'data-name': column.name }, ...(cell ? breakable(cell) : []));
        if (column.color) content.classList.add('verdict', ...column.color(row));
        return content;
      }))));
    fitTable(place);
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
const verdictColumn = (name, key) => ({ name, text: (row) => key(row) ? verdictText(key(row)) : '', sort: (row) => rank[key(row)], kind: null, color: (row) => key(row) ? [key(row)] : [] });
const intervalColumn = (name, key) => ({ name, text: (row) => key(row) ? differenceInterval(key(row)) : '', sort: (row) => key(row)?.difference_low, kind: 'number' });
const noteColumn = (rows) => rows.some((row) => row.note) ? [{ name: 'note', text: (row) => row.note, sort: (row) => row.note, kind: 'long' }] : [];
const variantColumn = { name: 'variant', text: (row) => row.label ?? row.variant, sort: (row) => row.label ?? row.variant, kind: null, hint: true };

const verdictColumns = [
  variantColumn,
  verdictColumn('verdict', (row) => row.verdict),
  column('difference', (row) => row.difference, signed),
  intervalColumn(`${data.confidence} interval`, (row) => row),
  { name: unit, text: (row) => row.n === row.trials ? String(row.n) : `${row.n} of ${row.trials}`, sort: (row) => row.n, kind: 'number' },
  column(`mean ${data.metric}`, (row) => row.mean, fixed),
  column('sd', (row) => row.std, fixed),
  ...noteColumn(data.rows),
];

const symbols = 'Triangles up: helps; triangles down: hurts; squares: same; hollow circles: inconclusive or withheld; diamonds: the baseline.';
const baselineClass = (row) => isBaseline(row) ? 'baseline' : null;

const verdictsCaption = `Differences in ${data.metric} (${better}), variant \u2212 baseline, means over paired ${unit}, with simultaneous ${data.confidence} confidence intervals. Click on a header to sort.`;
const marginText = data.margin === null ? '' : ` Shaded: differences within the margin of ${data.margin}, which count as none.`;
/** The caption of `drawDifferences`; `order` says how its rows are ordered. */
const differencesCaption = (order = '') => `Differences in ${data.metric} with simultaneous ${data.confidence} confidence intervals${order}.${marginText} Arrows: the interval continues. ${symbols}`;

/** Draws the differences of rows from the baseline, which is left out. */
function drawDifferences(figure, rows) {
  drawForest(figure, rows.filter((row) => !isBaseline(row)), {
    goal: data.goal, margin: data.margin, confidence: data.confidence, axisName: `difference in ${data.metric} (variant \u2212 baseline)`, lines,
  });
}

/** Lines of the tooltip of a row. */
function lines(row) {
  const texts = [row.label, `${data.metric} ${fixed(row.mean)}, ${row.n} of ${row.trials} ${unit}`];
  if (isNumber(row.difference)) {
    const range = differenceInterval(row);
    texts.push(`difference ${signed(row.difference)}${range ? `, ${data.confidence}: ${range}` : ''}`);
    texts.push(`${row.verdict}${isNumber(row.p) ? `, p ${probability(row.p)}` : ''}`);
  }
  if (row.note) texts.push(row.note);
  return texts;
}
