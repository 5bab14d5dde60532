const count = (value) => value.toLocaleString('en-US');
const named = (label) => label < 0 ? 'none' : data.classes[label];
const cells = (values) => values.map((value) => html('td', {}, value));
const heads = (names, scope = 'col') => names.map((name) => html('th', { scope }, name));

function table(title, head, rows) {
  const body = html('tbody', {}, ...rows.map((row) => html('tr', {}, ...row)));
  const whole = html('table', {}, html('thead', {}, html('tr', {}, ...heads(head))), body);
  return html('section', {}, html('h2', {}, title), html('div', { class: 'scroll' }, whole));
}

function example(item) {
  const input = item.image ? html('img', { src: item.image, alt: item.name, width: 96, style: 'image-rendering: pixelated' }) : item.text ?? '';
  return cells([input, item.name, named(item.label), named(item.prediction), Math.exp(-item.loss).toPrecision(2)]);
}

const share = (100 * data.wrong / Math.max(data.examples, 1)).toFixed(1);
document.getElementById('summary').textContent = `${count(data.wrong)} of ${count(data.examples)} examples are wrong (${share} %).`;
const parts = [
  table('Highest losses', ['input', 'name', 'label', 'prediction', 'probability of the label'], data.worst.map(example)),
  table('Most frequent confusions', ['label', 'prediction', 'examples'], data.pairs.map(([label, prediction, number]) => cells([named(label), named(prediction), count(number)]))),
];
if (data.matrix.length) {
  // The last column has the examples for which no class is the likeliest.
  const none = data.matrix.some((row) => row[row.length - 1]);
  const shown = data.matrix.map((row) => none ? row : row.slice(0, -1));
  const rows = shown.map((row, label) => [...heads([data.classes[label]], 'row'), ...cells(row.map((number) => number ? count(number) : '\u00b7'))]);
  parts.push(table('Confusion matrix: labels in rows, predictions in columns', ['', ...data.classes, ...(none ? ['none'] : [])], rows));
}
document.getElementById('parts').append(...parts);
