const testColumns = [
  variantColumn,
  column('p', (row) => row.p, probability),
  column(data.other_test, (row) => row.p_other, probability),
  column('effect (sd)', (row) => row.effect, (value) => isNumber(value) ? (value > 0 ? '+' : '') + minus(value.toFixed(2)) : ''),
  column('more seeds', (row) => row.more_seeds || null, more),
];

const costColumns = [
  variantColumn,
  column('FLOPs', (row) => row.costs.flops, (value) => short(value, 3, true)),
  column('seconds', (row) => row.costs.seconds, tenths),
  column('s / step', (row) => row.costs.step_seconds, (value) => short(value, 3)),
  column('compile (s)', (row) => row.costs.compile_seconds, tenths),
  column('tokens / s', (row) => row.costs.tokens_per_second, integer),
  column('memory (MiB)', (row) => row.costs.memory_bytes, integer),
  column('load', (row) => row.costs.load, tenths),
  column('concurrent trials', (row) => row.costs.at_once, tenths),
  column('Pareto front by', (row) => row.fronts.map((name) => data.cost_names[name]).join(', '), null, 'long'),
];

const budgetColumns = [
  variantColumn,
  column('parameters', (row) => row.costs.parameters, integer),
  column('FLOPs / token', (row) => row.costs.flops_per_token, (value) => short(value, 4, true)),
  column('steps', (row) => row.num_steps, integer),
  column('FLOPs', (row) => row.costs.flops, (value) => short(value, 4, true)),
  ...(data.matched ? [column('deviation', (row) => row.gap, percent), column('adjusted parameter', (row) => row.knob, null, null)] : []),
];

const costAxes = {
  parameters: 'parameters', flops_per_token: 'FLOPs per token of training', flops: 'FLOPs of training', seconds: 'seconds of training steps',
  memory_bytes: 'peak memory (MiB)',
};
for (const row of data.rows) if (row.costs.memory_bytes) row.costs.memory_bytes /= 2 ** 20;

const tunedParameters = data.tuning ? [...new Set(data.tuning.rows.map((row) => row.parameter))] : [];
const tunedColumns = [
  variantColumn,
  ...(tunedParameters.length > 1 ? [column('parameter', (row) => row.parameter, null, null)] : []),
  column('own value', (row) => row.own, (value) => short(value)),
  { name: 'tuned values', text: (row) => row.tuned, sort: (row) => row.chosen, kind: 'number' },
  ...['before', 'after'].map((side) => verdictColumn(`${side}: verdict`, (row) => row[side]?.verdict)),
  ...(data.tuning && data.tuning.rows.some(tuningNote) ? [{ name: 'note', text: tuningNote, sort: tuningNote, kind: 'long' }] : []),
  ...['before', 'after'].flatMap((side) => [
    column(`${side}: difference`, (row) => row[side]?.difference, signed),
    intervalColumn(`${side}: interval`, (row) => row[side]),
  ]),
];

function tuningNote(row) {
  const diverged = row.curve.filter((point) => point.diverged).map((point) => short(point.value));
  return [row.edge && `tuned value is the ${row.edge} that was tried`, diverged.length && `seeds diverged at ${diverged.join(', ')}`, row.note]
    .filter(Boolean).join('; ');
}
