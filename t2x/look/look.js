const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const channels = (hex) => (hex.length === 4 ? [...hex.slice(1)].map((d) => d + d) : hex.slice(1).match(/../g)).map((d) => parseInt(d, 16));
const shade = (part, name = '--help') => `color-mix(in srgb, var(${name}) ${Math.round(50 * Math.max(0, Math.min(1, part)))}%, transparent)`;

/** Decodes maps {shape, low, high, numbers} into `value(map, row, column)`. */
async function unpack(packed) {
  const raw = Uint8Array.from(atob(packed.numbers), (character) => character.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream('deflate'));
  const codes = new Uint16Array(await new Response(stream).arrayBuffer());
  const [, rows, columns] = packed.shape;
  packed.value = (map, row, column) => packed.low[map]
    + codes[(map * rows + row) * columns + column] / 65535 * (packed.high[map] - packed.low[map]);
}

/** Paints a map on a canvas, one pixel per value; negative values in another colour. */
function paint(canvas, rows, columns, value, low, high) {
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext('2d');
  const [paper, more, less] = ['--raised', '--help', '--hurt'].map((name) => channels(variable(name)));
  const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const image = context.createImageData(columns, rows);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const number = value(row, column);
      const part = Math.min(1, Math.abs(number) / most);
      const end = number < 0 ? less : more;
      const colour = paper.map((from, i) => Math.round(from + part * (end[i] - from)));
      image.data.set([...colour, 255], 4 * (row * columns + column));
    }
  }
  context.putImageData(image, 0, 0);
}

/** Sets the size of a canvas in CSS pixels and returns its context, for screens of any density. */
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = false;
  return context;
}

/** Puts a canvas into a figure that scrolls; pointing at it shows the lines that `lines(x, y)` returns. */
function pointed(figure, canvas, text, lines) {
  const scroll = html('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': text }, canvas);
  figure.replaceChildren(scroll);
  const at = (event) => {
    const bounds = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    tip(figure, lines(x, y), x - scroll.scrollLeft, y);
  };
  canvas.addEventListener('pointermove', at);
  canvas.addEventListener('pointerdown', at);
  canvas.addEventListener('pointerleave', () => tip(figure, null));
}

/** Draws a map and a tooltip for each cell; a map with names on both axes, unless `labelled` is false. */
function heatMap(figure, { rows, columns, value, low, high, queries, keys, text, labelled = Boolean(queries), scaled = true }) {
  const width = figure.clientWidth || 300;
  const left = labelled ? Math.min(120, 10 + 7 * Math.max(...queries.map((label) => label.length))) : 0;
  const top = labelled ? Math.min(110, 10 + 7 * Math.max(...keys.map((label) => label.length))) : 0;
  const cell = labelled ? Math.max(11, Math.min(28, Math.floor((width - left) / columns)))
    : Math.max(1, Math.min(12, Math.floor(Math.min(width, 340) / Math.max(rows, columns))));
  const cells = html('canvas', {});
  paint(cells, rows, columns, value, low, high);
  const canvas = html('canvas', { role: 'img', 'aria-label': text });
  const context = sized(canvas, left + columns * cell, top + rows * cell);
  context.drawImage(cells, left, top, columns * cell, rows * cell);
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
  pointed(figure, canvas, text, (x, y) => {
    const [row, column] = [Math.floor((y - top) / cell), Math.floor((x - left) / cell)];
    if (row < 0 || column < 0 || row >= rows || column >= columns) return null;
    const names = queries ? `${queries[row]} \u2192 ${keys[column]}` : `row ${row}, column ${column}`;
    return [names, short(value(row, column), 3)];
  });
  if (scaled) figure.append(colourScale(Math.min(0, low), high));
}

/** The colours of the values from `low` to `high`, with both numbers. */
function colourScale(low, high) {
  const bar = html('canvas', { class: 'ramp', role: 'img', 'aria-label': `colours from ${short(low, 3)} to ${short(high, 3)}` });
  paint(bar, 1, 100, (_, i) => low + (i + 0.5) / 100 * (high - low), low, high);
  return html('p', { class: 'caption scale' }, short(low, 3), bar, short(high, 3));
}

/** Draws what a query sees over the picture; a click chooses the patch under the pointer as the query.
 * `weight(key)` is the attention of the query, `query` its index, or -1 for the mean over queries. */
function overlay(figure, one, { weight, query, text, choose }) {
  const [rows, columns, extra] = one.grid;
  const [depth, height, width] = data.pixels.shape;
  const cell = Math.max(8, Math.floor(Math.min(figure.clientWidth || 340, 340) / Math.max(rows, columns)));
  const cells = html('canvas', { width, height });
  const image = new ImageData(width, height);
  // Darkened, so that the weights stay visible on white.
  for (let at = 0; at < width * height; at++) {
    const colour = [0, 1, 2].map((c) => 150 * data.pixels.value(Math.min(c, depth - 1), Math.floor(at / width), at % width));
    image.data.set([...colour, 255], 4 * at);
  }
  cells.getContext('2d').putImageData(image, 0, 0);
  const canvas = html('canvas', { role: 'img', 'aria-label': text });
  const context = sized(canvas, columns * cell, rows * cell);
  context.drawImage(cells, 0, 0, columns * cell, rows * cell);
  const keys = Array.from({ length: rows * columns }, (_, patch) => extra + patch);
  const most = Math.max(...keys.map(weight)) || 1;
  context.fillStyle = variable('--c1');
  for (const key of keys) {
    const [row, column] = [Math.floor((key - extra) / columns), (key - extra) % columns];
    context.globalAlpha = 0.8 * weight(key) / most;
    context.fillRect(column * cell, row * cell, cell, cell);
  }
  context.globalAlpha = 1;
  if (query >= extra) {
    context.strokeStyle = variable('--c2');
    context.lineWidth = 3;
    context.strokeRect((query - extra) % columns * cell + 1.5, Math.floor((query - extra) / columns) * cell + 1.5, cell - 3, cell - 3);
  }
  const key = (x, y) => extra + Math.min(rows - 1, Math.max(0, Math.floor(y / cell))) * columns + Math.min(columns - 1, Math.max(0, Math.floor(x / cell)));
  pointed(figure, canvas, text, (x, y) => [one.keys[key(x, y)], short(weight(key(x, y)), 3)]);
  canvas.addEventListener('click', (event) => {
    const bounds = canvas.getBoundingClientRect();
    choose(key(event.clientX - bounds.left, event.clientY - bounds.top));
  });
}

const section = (title, ...children) => {
  const made = html('section', {}, html('h2', {}, title), ...children);
  byId('main').append(made);
  return made;
};
const capital = (text) => text[0].toUpperCase() + text.slice(1);

const mapName = (map) => map ? `head ${map}` : 'mean over heads';

/** A picture under the attention of one query, with a choice of the query; returns `draw(layer, map)`. */
function pictureOf(one, figure, select, seen) {
  // The queries of cross-attention are words.
  const [extra, words] = [one.grid[2], one.name.startsWith('cross-attention')];
  const first = words ? one.queries.length : extra;
  choices(select, [...one.queries.slice(0, first).map((name, at) => [String(at), name]), ['-1', 'mean over queries'],
    ...one.queries.slice(first).map((name, at) => [String(at + first), name])]);
  let last = [0, 0];
  const draw = (at, map) => {
    last = [at, map];
    const [layer, query] = [one.layers[at], Number(select.value)];
    const queries = query < 0 ? [...one.queries.keys()] : [query];
    const sums = one.keys.map((_, key) => average(queries.map((q) => layer.value(map, q, key))));
    const text = `Layer ${at + 1}, ${mapName(map)}: attention of ${query < 0 ? 'all queries' : one.queries[query]}`;
    overlay(figure, one, { weight: (key) => sums[key], query: words ? -1 : query, text, choose: (key) => { if (!words) { select.value = String(key); draw(...last); } } });
    seen.textContent = one.keys.slice(0, extra).map((name, key) => `Weight of the ${name}: ${short(sums[key], 3)}. `).join('')
      + `Orange: weight of the patch, relative to the maximum of the picture (${short(Math.max(...sums.slice(extra)), 3)}).${words ? '' : ' Click on a patch to choose it as the query.'}`;
  };
  select.addEventListener('change', () => draw(...last));
  return draw;
}

function attentionSection(one) {
  const thumbs = html('div', { class: 'thumbs' });
  const figure = html('div', { class: one.grid ? 'figure map' : 'figure' });
  const name = html('h3', {});
  const table = html('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Heads' });
  const select = html('select', { 'aria-label': 'Statistic' });
  const isImage = Boolean(one.grid && data.pixels);
  const picture = html('div', { class: 'figure' });
  const query = html('select', { 'aria-label': 'Query' });
  const seen = html('p', { class: 'caption' });
  section(capital(one.name), html('p', { class: 'caption' }, `One map per layer (rows): the mean over heads${one.name.startsWith('cross-attention') ? ' (an alignment only if it falls on the words, not on an end token or a prefix)' : ''} and each head (columns). Queries from top to bottom, keys from left to right; colour relative to the maximum of the map.`),
    thumbs, name, isImage ? html('div', { class: 'controls' }, html('label', {}, 'Query ', query)) : null,
    html('div', { class: isImage ? 'maps' : '' }, isImage ? html('div', { class: 'map' }, picture, seen) : null, figure),
    html('div', { class: 'controls' }, html('label', {}, 'Statistic ', select)), table);
  const most = Math.max(...one.layers.map((layer) => layer.shape[0]));
  thumbs.style.gridTemplateColumns = `repeat(${most}, minmax(1.5rem, 6rem))`;
  const drawPicture = isImage ? pictureOf(one, picture, query, seen) : () => {};
  const draw = (at, map) => {
    const layer = one.layers[at];
    name.textContent = `Layer ${at + 1}, ${mapName(map)}`;
    thumbs.querySelectorAll('button').forEach((button) => button.setAttribute('aria-pressed', String(button.dataset.at === `${at},${map}`)));
    heatMap(figure, { rows: layer.shape[1], columns: layer.shape[2], value: (q, k) => layer.value(map, q, k), low: 0, high: layer.high[map], queries: one.queries, keys: one.keys, text: `attention of layer ${at + 1}, ${mapName(map)}`, labelled: !one.grid });
    drawPicture(at, map);
    draw.last = [at, map];
  };
  one.layers.forEach((layer, at) => {
    for (let map = 0; map < most; map++) {
      if (map >= layer.shape[0]) { thumbs.append(html('span')); continue; }
      const canvas = html('canvas', {});
      const button = html('button', { type: 'button', 'data-at': `${at},${map}`, 'aria-label': `layer ${at + 1}, ${mapName(map)}` }, canvas);
      button.addEventListener('click', () => draw(at, map));
      thumbs.append(button);
      button.repaint = () => paint(canvas, layer.shape[1], layer.shape[2], (q, k) => layer.value(map, q, k), 0, layer.high[map]);
    }
  });
  const names = { entropy: 'entropy (bits)', distance: one.grid ? 'mean distance (patches)' : 'mean distance (tokens)', previous: 'share on the previous token', first: 'share on the first token', separator: 'share on separators' };
  choices(select, Object.keys(one.statistics).map((key) => [key, names[key]]));
  const tabulate = () => {
    const values = one.statistics[select.value];
    const highest = Math.max(...values.flat(), 1e-9);
    table.replaceChildren(html('table', {},
      html('thead', {}, html('tr', {}, html('th', {}, 'layer'), ...Array.from({ length: most - 1 }, (_, head) => html('th', { class: 'number' }, `head ${head + 1}`)))),
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

function drawingsSection() {
  for (const [title, url] of data.drawings) section(title, html('img', { src: url, alt: title }));
}

function mapsSection() {
  if (!data.maps.length) return () => {};
  const box = html('div', { class: 'maps' });
  section('Positions and attention patterns', box);
  const draws = data.maps.map((map) => {
    const figure = html('div', { class: 'figure' });
    box.append(html('div', { class: 'map' }, html('h3', {}, map.title), figure));
    return () => heatMap(figure, { rows: map.shape[1], columns: map.shape[2], value: (q, k) => map.value(0, q, k), low: map.low[0], high: map.high[0], text: map.title });
  });
  return () => draws.forEach((draw) => draw());
}

/** A heat map of each layer whose colours have one scale, and its legend. */
function loadsSection() {
  if (!data.loads.length) return () => {};
  const most = Math.max(...data.loads.map((load) => load.high[0]));
  const [box, bar] = [html('div', { class: 'maps' }), html('canvas', { class: 'ramp', role: 'img', 'aria-label': 'legend' })];
  section('Load of the experts', html('p', { class: 'caption' }, 'Share of the choices of the tokens of a group (rows) that each expert (columns) receives, dropped ones included.'),
    html('p', { class: 'caption scale' }, '0', bar, `${short(most, 3)} of the group`), box);
  const draws = data.loads.map((load) => {
    const [, rows, columns] = load.shape;
    const figure = html('div', { class: 'figure' });
    box.append(html('div', { class: 'map wide' }, html('h3', {}, capital(load.name)), figure, html('p', { class: 'caption' }, `Equal load: ${short(1 / columns, 3)}`)));
    return () => heatMap(figure, { rows, columns, value: (group, expert) => load.value(0, group, expert), low: 0, high: most, queries: load.groups, keys: Array.from({ length: columns }, (_, i) => `expert ${i}`), text: `load of the experts of ${load.name}`, scaled: false });
  });
  return () => { paint(bar, 1, 100, (_, i) => i, 0, 99); draws.forEach((draw) => draw()); };
}

(async () => {
  for (const [name, value] of data.facts) byId('versions').append(html('dt', {}, name), html('dd', {}, value));
  for (const note of data.notes) byId('notes').append(html('p', {}, note));
  await Promise.all([...data.attention.flatMap((one) => one.layers), ...data.maps, ...data.loads, ...(data.pixels ? [data.pixels] : [])].map(unpack));
  drawingsSection();
  const draws = data.attention.map(attentionSection);
  if (data.lens) lensSection(data.lens);
  otherSections();
  const late = [loadsSection(), mapsSection()];
  draws.push(...late);
  const all = () => draws.forEach((draw) => draw());
  late.forEach((draw) => draw());
  redrawOnResize(all);
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', all);
  document.body.dataset.ready = 'true';
})();
