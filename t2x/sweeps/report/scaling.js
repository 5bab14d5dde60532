/** Draws a fitted law with its interval, the measured losses, and the predictions of sizes that were not fitted. */
function drawScaling(figure, fit, options) {
  const variable = fit.variables[0];
  const [width, height] = chartSize(figure);
  const losses = fit.sizes.flatMap((size) => [...size.losses, size.prediction.value]);
  const labels = fit.curves.length > 1 && width > 640;
  const { root, body, X, Y, box } = frame(width, height,
    { range: extent(fit.curves[0].x, 0.05, true), name: `${variable} (log scale)`, log: true },
    { range: extent([...losses, ...fit.curves.flatMap((curve) => curve.value)], 0.06, true), name: `${options.metric} (log scale)`, log: true }, labels ? 150 : 16);
  const ends = [];
  fit.curves.forEach((curve, index) => {
    const { color: stroke, dash } = lineStyle(index);
    const line = (values) => curve.x.map((x, at) => `${X(x).toFixed(1)},${Y(Math.max(values[at], 1e-9)).toFixed(1)}`);
    body.append(
      svg('path', { d: `M${[...line(curve.high), ...line(curve.low).reverse()].join('L')}Z`, fill: stroke, 'fill-opacity': 0.13 }),
      svg('path', { d: `M${line(curve.value).join('L')}`, fill: 'none', stroke, 'stroke-width': 2, 'stroke-dasharray': dash }));
    ends.push({ y: Y(curve.value[curve.value.length - 1]), curve: { label: curve.name, color: stroke } });
  });
  const marks = [];
  for (const size of fit.sizes) {
    const x = X(size[variable]);
    const at = isNumber(size.mean) ? size.mean : size.prediction.value;
    if (!size.used) {
      const [low, high] = [size.prediction.low, size.prediction.high].map((value) => Y(Math.max(value, 1e-9)));
      const y = Y(size.prediction.value);
      body.append(svg('path', { class: 'prediction', d: `M${x},${low}V${high}M${x - 4},${low}h8M${x - 4},${high}h8`, stroke: 'var(--ink)' }),
        svg('path', { class: 'mark', d: `M${x},${y - 6}l6,6l-6,6l-6,-6Z`, fill: 'var(--paper)', stroke: 'var(--ink)', 'stroke-width': 1.5 }));
    }
    for (const loss of size.losses) body.append(svg('circle', { cx: x, cy: Y(loss), r: 3, fill: size.used ? 'var(--ink)' : 'var(--paper)', stroke: 'var(--ink)' }));
    marks.push({ x, y: Y(at), size });
  }
  if (labels) nameEnds(root, ends, box);
  show(figure, root, `${options.metric} against ${variable}: ${fit.formula}, ${fit.constants.map((item) => `${item.name} ${short(item.value)}`).join(', ')}`);
  exploreTips(figure, root, nearest(marks, 30), [...marks].sort((a, b) => a.x - b.x), (mark) => options.lines(mark.size));
}
