const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const channels = (hex) => (hex.length === 4 ? [...hex.slice(1)].map((d) => d + d) : hex.slice(1).match(/../g)).map((d) => parseInt(d, 16));
const shade = (part, name = '--help') => `color-mix(in srgb, var(${name}) ${Math.round(50 * Math.max(0, Math.min(1, part)))}%, transparent)`;

/** Decodes maps {shape, low, high, bytes} into `value(map, row, column)`. */
async function unpack(packed) {
  const raw = Uint8Array.from(atob(packed.bytes), (character) => character.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream('deflate'));
  const codes = new Uint8Array(await new Response(stream).arrayBuffer());
  const [, rows, columns] = packed.shape;
  packed.value = (map, row, column) => packed.low[map]
    + codes[(map * rows + row) * columns + column] / 255 * (packed.high[map] - packed.low[map]);
}

/** Paints a map on a canvas, `cell` pixels per value; negative values in another colour. */
function paint(canvas, rows, columns, cell, value, low, high) {
  canvas.width = columns * cell;
  canvas.height = rows * cell;
  const context = canvas.getContext('2d');
  const [paper, more, less] = ['--raised', '--help', '--hurt'].map((name) => channels(variable(name)));
  const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const part = Math.min(1, Math.abs(value(row, column)) / most);
      const end = value(row, column) < 0 ? less : more;
      context.fillStyle = `rgb(${paper.map((from, i) => Math.round(from + part * (end[i] - from))).join(' ')})`;
      context.fillRect(column * cell, row * cell, cell, cell);
    }
  }
}

/** Draws a map with labels on both axes, or without, and a tooltip for each cell. */
function heatMap(figure, { rows, columns, value, low, high, queries, keys, text }) {
  const labelled = Boolean(queries);
  const width = figure.clientWidth || 300;
  const left = labelled ? Math.min(120, 10 + 7 * Math.max(...queries.map((label) => label.length))) : 0;
  const top = labelled ? Math.min(110, 10 + 7 * Math.max(...keys.map((label) => label.length))) : 0;
  const cell = labelled ? Math.max(11, Math.min(28, Math.floor((width - left) / columns)))
    : Math.max(1, Math.min(12, Math.floor(Math.min(width, 340) / Math.max(rows, columns))));
  const cells = html('canvas', {});
  paint(cells, rows, columns, cell, value, low, high);
  const canvas = html('canvas', { role: 'img', 'aria-label': text });
  const ratio = window.devicePixelRatio || 1;
  const size = [left + columns * cell, top + rows * cell];
  [canvas.width, canvas.height] = size.map((pixels) => pixels * ratio);
  [canvas.style.width, canvas.style.height] = size.map((pixels) => `${pixels}px`);
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  context.drawImage(cells, left, top);
  if (labelled) {
    context.font = '11px system-ui, sans-serif';
    context.fillStyle = variable('--ink');
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    queries.forEach((label, row) => context.fillText(cut(label, 16), left - 5, top + (row + 0.5) * cell));
    context.textAlign = 'left';
    keys.forEach((label, column) => {
      context.save();
      context.translate(left + (column + 0.5) * cell, top - 5);
      context.rotate(-Math.PI / 2);
      context.fillText(cut(label, 14), 0, 0);
      context.restore();
    });
  }
  const scroll = html('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': text }, canvas);
  figure.replaceChildren(scroll);
  const at = (event) => {
    const bounds = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    const [row, column] = [Math.floor((y - top) / cell), Math.floor((x - left) / cell)];
    if (row < 0 || column < 0 || row >= rows || column >= columns) return tip(figure, null);
    const names = labelled ? [`${queries[row]} \u2192 ${keys[column]}`] : [`row ${row}, column ${column}`];
    return tip(figure, [...names, short(value(row, column), 3)], x - scroll.scrollLeft, y);
  };
  canvas.addEventListener('pointermove', at);
  canvas.addEventListener('pointerdown', at);
  canvas.addEventListener('pointerleave', () => tip(figure, null));
}

const section = (title, ...children) => {
  const made = html('section', {}, html('h2', {}, title), ...children);
  byId('main').append(made);
  return made;
};
const capital = (text) => text[0].toUpperCase() + text.slice(1);

function attentionSection(one) {
  const thumbs = html('div', { class: 'thumbs' });
  const figure = html('div', { class: 'figure' });
  const name = html('h3', {});
  const table = html('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Heads' });
  const select = html('select', { 'aria-label': 'Statistic' });
  section(capital(one.name), html('p', { class: 'caption' }, 'One map per layer (rows) and head (columns): queries from top to bottom, keys from left to right; colour relative to the maximum of the head.'),
    thumbs, name, figure, html('div', { class: 'controls' }, html('label', {}, 'Statistic ', select)), table);
  const most = Math.max(...one.layers.map((layer) => layer.shape[0]));
  thumbs.style.gridTemplateColumns = `repeat(${most}, minmax(1.5rem, 6rem))`;
  const draw = (at, head) => {
    const layer = one.layers[at];
    name.textContent = `Layer ${at + 1}, head ${head + 1}`;
    thumbs.querySelectorAll('button').forEach((button) => button.setAttribute('aria-pressed', String(button.dataset.at === `${at},${head}`)));
    heatMap(figure, { rows: layer.shape[1], columns: layer.shape[2], value: (q, k) => layer.value(head, q, k), low: 0, high: layer.high[head], queries: one.queries, keys: one.keys, text: `attention of layer ${at + 1}, head ${head + 1}` });
    draw.last = [at, head];
  };
  one.layers.forEach((layer, at) => {
    for (let head = 0; head < most; head++) {
      if (head >= layer.shape[0]) { thumbs.append(html('span')); continue; }
      const canvas = html('canvas', {});
      const button = html('button', { type: 'button', 'data-at': `${at},${head}`, 'aria-label': `layer ${at + 1}, head ${head + 1}` }, canvas);
      button.addEventListener('click', () => draw(at, head));
      thumbs.append(button);
      button.repaint = () => paint(canvas, layer.shape[1], layer.shape[2], 1, (q, k) => layer.value(head, q, k), 0, layer.high[head]);
    }
  });
  const names = { entropy: 'entropy (bits)', distance: one.grid ? 'mean distance (patches)' : 'mean distance (tokens)', previous: 'share on the previous token', first: 'share on the first token', separator: 'share on separators' };
  choices(select, Object.keys(one.statistics).map((key) => [key, names[key]]));
  const tabulate = () => {
    const values = one.statistics[select.value];
    const highest = Math.max(...values.flat(), 1e-9);
    table.replaceChildren(html('table', {},
      html('thead', {}, html('tr', {}, html('th', {}, 'layer'), ...Array.from({ length: most }, (_, head) => html('th', { class: 'number' }, `head ${head + 1}`)))),
      html('tbody', {}, ...values.map((row, at) => html('tr', {}, html('td', {}, String(at + 1)), ...row.map((value) => html('td', { class: 'number', style: `background: ${shade(value / highest)}` }, value.toFixed(2))))))));
  };
  select.addEventListener('change', tabulate);
  tabulate();
  const redraw = () => { thumbs.querySelectorAll('button').forEach((button) => button.repaint()); draw(...(draw.last || [0, 0])); };
  redraw();
  return redraw;
}

function lensSection(lens) {
  const region = html('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Logit lens' });
  section('Predictions of each layer', html('p', { class: 'caption' }, 'Logit lens: the final norm and the head applied after each layer. Cells: the most probable output, darker if more probable; hover for the next ones.'), region);
  const name = (id) => lens.names[id];
  region.append(html('table', {},
    html('thead', {}, html('tr', {}, html('th', {}, 'layer'), ...lens.positions.map((text) => html('th', {}, text)))),
    html('tbody', {}, ...lens.ids.map((row, layer) => html('tr', {}, html('td', {}, String(layer + 1)), ...row.map((ids, place) => html('td', {
      style: `background: ${shade(lens.probabilities[layer][place][0])}`,
      title: ids.map((id, i) => `${name(id)} ${short(lens.probabilities[layer][place][i], 3)}`).join('\n'),
    }, name(ids[0]))))),
    html('tr', { class: 'baseline' }, html('td', {}, 'correct'), ...lens.targets.map((text) => html('td', {}, text))))));
}

function otherSections() {
  if (data.losses) {
    const { tokens, losses, ranks, context } = data.losses;
    const mean = average(losses);
    section('Loss of each token', html('p', { class: 'caption' }, `Cross-entropy in nats, given ${context}. Mean ${short(mean, 4)}, perplexity ${short(Math.exp(mean), 4)}.`),
      html('div', { class: 'tokens' }, ...tokens.map((token, i) => html('span', { style: `background: ${shade(losses[i] / Math.max(...losses), '--hurt')}`, title: `${ranks[i]} tokens are more probable` }, token, html('small', {}, losses[i].toFixed(2))))));
  }
  for (const { name, rows } of data.neighbours) {
    section(`Nearest neighbours of token embeddings${name ? ` (${name})` : ''}`, html('p', { class: 'caption' }, 'Cosine similarity.'), html('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Neighbours' },
      html('table', {}, html('tbody', {}, ...rows.map(([token, nearest]) => html('tr', {}, html('td', {}, token), ...nearest.map(([other, cosine]) => html('td', {}, `${other} `, html('span', { class: 'soft' }, cosine.toFixed(2))))))))));
  }
}

function mapsSection() {
  if (!data.maps.length) return () => {};
  const box = html('div', { class: 'maps' });
  section('Positions and attention patterns', box);
  const draws = data.maps.map((map) => {
    const figure = html('div', { class: 'figure' });
    figure.style.width = 'min(340px, 100%)';
    box.append(html('div', {}, html('h3', {}, map.title), figure));
    return () => heatMap(figure, { rows: map.shape[1], columns: map.shape[2], value: (q, k) => map.value(0, q, k), low: map.low[0], high: map.high[0], text: map.title });
  });
  return () => draws.forEach((draw) => draw());
}

(async () => {
  for (const [name, value] of data.facts) byId('versions').append(html('dt', {}, name), html('dd', {}, value));
  for (const note of data.notes) byId('notes').append(html('p', {}, note));
  await Promise.all([...data.attention.flatMap((one) => one.layers), ...data.maps].map(unpack));
  const draws = data.attention.map(attentionSection);
  if (data.lens) lensSection(data.lens);
  otherSections();
  draws.push(mapsSection());
  const all = () => draws.forEach((draw) => draw());
  draws[draws.length - 1]();
  redrawOnResize(all);
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', all);
  document.body.dataset.ready = 'true';
})();
