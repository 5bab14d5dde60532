'use strict';

const data = JSON.parse(document.getElementById('data').textContent);

/** Creates an element; strings are appended as text nodes, so that text of users is never parsed as HTML. */
function html(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const count = (value) => value.toLocaleString('en-US');
const percent = (share, digits = 2) => `${(100 * share).toFixed(digits)} %`;
const item = (name, value, note) =>
  html('div', {}, html('dt', {}, name), html('dd', {}, value, ...(note ? [' ', html('small', {}, note)] : [])));

function histogram(field) {
  const largest = Math.max(...field.bins.map((bin) => bin[2]));
  const lines = field.bins.map(([first, last, number]) => {
    const bar = html('div', {});
    bar.style.width = `${100 * number / largest}%`;
    const over = field.row !== null && first >= field.row;
    return html('tr', over ? { class: 'over' } : {},
      html('th', { scope: 'row' }, first === last ? count(first) : `${count(first)}\u2013${count(last)}`),
      html('td', {}, count(number)),
      html('td', { class: 'bar' }, ...(number ? [bar] : [])));
  });
  const head = html('tr', {}, html('th', { scope: 'col' }, 'tokens'), html('th', { scope: 'col' }, 'examples'), html('td', {}));
  return html('table', {}, html('thead', {}, head), html('tbody', {}, ...lines));
}

function fieldSection(name, field) {
  const unknown = percent(field.unknown / Math.max(field.tokens, 1), 3);
  const section = html('section', {},
    html('h3', {}, name),
    html('dl', { class: 'summary' },
      item('tokens', count(field.tokens)),
      item('unknown', count(field.unknown), unknown),
      ...Object.entries(field.summary).map(([what, value]) => item(what, count(value)))),
    histogram(field));
  // A text has at least one special token in a row.
  if (field.row !== null && field.bins.some((bin) => bin[0] >= field.row)) {
    section.append(html('p', { class: 'soft' }, `Orange: longer than a row of ${count(field.row)} tokens with special tokens.`));
  }
  return section;
}

function splitSection(split) {
  const share = (number) => percent(number / Math.max(split.examples, 1));
  return html('section', {},
    html('h2', {}, split.split),
    html('dl', {},
      item('examples', count(split.examples), `${split.megabytes.toFixed(1)} MB`),
      item('duplicates', count(split.duplicates), share(split.duplicates)),
      ...Object.entries(split.omitted).map(([what, number]) => item(what, count(number), share(number))),
      ...(split.cut_tokens ? [item('tokens cut', count(split.cut_tokens))] : []),
      item('rows', count(split.rows)),
      ...Object.entries(split.padding).map(([column, value]) =>
        item(column === 'total' ? 'padding' : `padding of ${column}`, percent(value)))),
    html('div', { class: 'fields' }, ...Object.entries(split.fields).map((field) => fieldSection(...field))));
}

document.getElementById('splits').append(...data.splits.map(splitSection));
