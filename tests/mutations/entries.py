"""The mutations of `python -m tests.mutations`: the text of each occurs once in t2x."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutation:
  """A change of t2x that tests should notice.

  Attributes:
    name: name of the mutation, with the package.
    find: the text to replace, which occurs once in the files of t2x.
    replacement: the text to replace it with.
    tests: arguments of pytest, the tests that should fail.
  """

  name: str
  find: str
  replacement: str
  tests: str


MUTATIONS = (
  Mutation(
    'layers-layer-norm-mean',
    'y = y - y.mean(axis=-1, keepdims=True)',
    'y = y - 0 * y.mean(axis=-1, keepdims=True)',
    'tests/layers/test_norms.py',
  ),
  Mutation(
    'layers-rope-sign',
    'jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)',
    'jnp.concatenate([a * cos - b * sin, b * cos - a * sin], axis=-1)',
    'tests/layers/positions/test_encoding.py tests/layers/positions/test_common.py',
  ),
  Mutation(
    'layers-alibi-between-powers',
    'between = np.arange(1, 2 * below + 1, 2) / (2 * below)',
    'between = np.arange(1, 2 * below + 1, 2) / below',
    'tests/layers/positions/test_encoding.py tests/layers/positions/test_common.py',
  ),
  Mutation(
    'layers-t5-keys-after-the-query',
    'size = jnp.abs(distance) if self.bidirectional else jnp.maximum(-distance, 0)',
    'size = jnp.abs(distance)',
    'tests/layers/positions/test_encoding.py tests/layers/positions/test_common.py',
  ),
  Mutation(
    'layers-cope-gate-scale',
    'gates = jax.nn.sigmoid(scale * dots)',
    'gates = jax.nn.sigmoid(dots)',
    'tests/layers/positions/test_cope.py',
  ),
  Mutation(
    'layers-deberta-score-scale',
    'return scale * terms',
    'return terms',
    'tests/layers/positions/test_disentangled.py',
  ),
  Mutation(
    'layers-window-size',
    'near = abs(offset) < self.size * self.dilation',
    'near = abs(offset) <= self.size * self.dilation',
    'tests/layers/patterns/test_algebra.py',
  ),
  Mutation(
    'layers-scale-with-encoding-terms',
    'self.scale * encoding.num_terms**-0.5',
    'self.scale',
    'tests/layers/positions/test_disentangled.py tests/layers/positions/test_tupe.py '
    'tests/layers/attention/test_multi_head.py',
  ),
  Mutation(
    'layers-gated-activation',
    'self.activation(self.gate(x)) * self.up(x)',
    'self.gate(x) * self.activation(self.up(x))',
    'tests/layers/feed_forward/test_mlp.py',
  ),
  Mutation(
    'layers-expert-balance',
    'return (probability * self.present[..., None]).sum(axis=1)',
    'return probability.sum(axis=1)',
    'tests/layers/feed_forward/test_experts.py',
  ),
  Mutation(
    'layers-full-cache',
    'new = jnp.where(start + length <= size, new, jnp.nan)',
    'pass',
    'tests/layers/attention/test_multi_head.py',
  ),
  Mutation(
    'layers-full-memory-of-a-cache',
    'new_v = jnp.where((count <= size)[:, None, None, None], new_v, jnp.nan)',
    'pass',
    'tests/layers/mixers/test_memory_compressed.py',
  ),
  Mutation(
    'layers-directions-from-raw-bits',
    '((raw >> 11) + 0.5) * 2.0**-53',
    '((raw >> 12) + 0.5) * 2.0**-53',
    'tests/layers/mixers/test_feature_maps.py',
  ),
  Mutation(
    'layers-exact-products',
    'return jnp.einsum(equation, *operands, precision=jax.lax.Precision.HIGHEST)',
    'return jnp.einsum(equation, *operands)',
    'tests/layers/test_products.py',
  ),
  Mutation(
    'layers-scores-without-a-scale',
    "if encoding.num_terms > 1 and 'scale' not in reads:",
    'if encoding.num_terms > 9:',
    'tests/layers/attention/test_scores.py',
  ),
  Mutation(
    'models-tied-head-scale-under-mup',
    '(d_model / build_context().scale.width_ratio) ** -0.5 if scaled',
    'd_model**-0.5 if scaled',
    'tests/models/test_heads.py',
  ),
  Mutation(
    'models-label-smoothing',
    'share * (normaliser - logits.mean(axis=-1))',
    'share * normaliser',
    'tests/models/test_head_losses.py tests/tasks/test_losses.py',
  ),
  Mutation(
    'models-z-loss-weights',
    'scalar(z_loss) * jnp.square(normaliser) * weights',
    'scalar(z_loss) * jnp.square(normaliser)',
    'tests/models/test_head_losses.py tests/tasks/test_losses.py',
  ),
  Mutation(
    'decode-nucleus-includes-the-last',
    'jnp.cumsum(probs, axis=-1) - probs < p',
    'jnp.cumsum(probs, axis=-1) < p',
    'tests/decode/test_sampling.py',
  ),
  Mutation(
    'decode-repetition-penalty-sign',
    'jnp.where(scores < 0, scores * self.penalty, scores / self.penalty)',
    'scores / self.penalty',
    'tests/decode/test_processors.py',
  ),
  Mutation(
    'decode-bound-of-the-length-penalty',
    'following = jnp.minimum(length + 1, limit)',
    'following = length',
    'tests/decode/test_beam.py',
  ),
  Mutation(
    'decode-key-of-the-step',
    'jax.random.categorical(jax.random.fold_in(key, step), logits)',
    'jax.random.categorical(key, logits)',
    'tests/decode/test_sampling.py',
  ),
  Mutation(
    'decode-extensions-for-each-end-token',
    'min(1 + max(len(request.eos_ids), 1), vocab) * width',
    'min(2, vocab) * width',
    'tests/decode/test_beam.py',
  ),
  Mutation(
    'decode-log-probabilities-of-the-model-in-a-beam',
    'jnp.take_along_axis(log_probs.reshape(batch, width * vocab), flat, axis=1)',
    'jnp.take_along_axis(processed.reshape(batch, width * vocab), flat, axis=1)',
    'tests/decode/test_beam.py',
  ),
  Mutation(
    'decode-log-probabilities-of-the-model-in-samples',
    'log_prob = picked - jax.nn.logsumexp(logits, axis=-1)',
    'log_prob = picked - jax.nn.logsumexp(processed, axis=-1)',
    'tests/decode/test_sampling.py',
  ),
  Mutation(
    'data-positions-in-segments',
    'places[start:stop] = index[: stop - start]',
    'places[start:stop] = index[start:stop]',
    'tests/data/test_packing.py',
  ),
  Mutation(
    'data-cut-pairs-keep-eos',
    'example[name][: length - added]',
    'example[name][:length]',
    'tests/data/test_packing.py',
  ),
  Mutation(
    'data-masking-mean',
    'int(self.rate * len(maskable) + rng.random())',
    'int(self.rate * len(maskable) + 0.5)',
    'tests/data/test_masking.py',
  ),
  Mutation(
    'data-masking-random-tokens',
    'drawn < self.mask_rate + self.random_rate',
    'drawn < self.random_rate',
    'tests/data/test_masking.py',
  ),
  Mutation(
    'data-order-of-the-epoch',
    '_mix(start + epoch.astype(np.uint64))',
    '_mix(start + 0 * epoch.astype(np.uint64))',
    'tests/data/test_batches.py',
  ),
  Mutation(
    'data-place-after-a-stage',
    'yield source, before[source] + place',
    'yield source, place',
    'tests/data/test_mixtures.py',
  ),
  Mutation(
    'data-sentinels-descend',
    'self.first_sentinel + 1 - np.cumsum(starts)',
    'self.first_sentinel - 1 + np.cumsum(starts)',
    'tests/data/test_corruption.py',
  ),
  Mutation(
    'tasks-entity-precision',
    "'entity_precision': (num_correct, num_predicted)",
    "'entity_precision': (num_correct, num_true)",
    'tests/tasks/test_labelled.py',
  ),
  Mutation(
    'tasks-answer-length',
    'allowed = (distance >= 0) & (distance < longest)',
    'allowed = (distance >= 0) & (distance <= longest)',
    'tests/tasks/test_span_prediction.py',
  ),
  Mutation(
    'tasks-distillation-temperature',
    'return temperature**2 * (',
    'return (',
    'tests/tasks/test_distillation.py',
  ),
  Mutation(
    'tasks-f1-counts-repeated-words',
    '(collections.Counter(predicted) & collections.Counter(gold)).values()',
    '(collections.Counter(set(predicted)) & collections.Counter(set(gold))).values()',
    'tests/tasks/test_squad.py',
  ),
  Mutation(
    'tasks-mixup-labels',
    'images[other], other, share',
    'images[other], other, 1 - share',
    'tests/tasks/test_image_mixing.py',
  ),
  Mutation(
    'train-key-of-the-step',
    'jax.random.fold_in(state.key, state.step)',
    'state.key',
    'tests/train/test_step.py',
  ),
  Mutation(
    'train-clip-before-the-rule',
    'optax.chain(optax.clip_by_global_norm(clip_norm), rule)',
    'optax.chain(rule, optax.clip_by_global_norm(clip_norm))',
    'tests/train/test_optimizers.py',
  ),
  Mutation(
    'train-ema-warm-up',
    'jnp.minimum(trainer.ema_decay, (1.0 + count) / (10.0 + count))',
    'trainer.ema_decay',
    'tests/train/test_step.py',
  ),
  Mutation(
    'train-first-step-of-the-warm-up',
    'scalar(self.peak) * (step + 1) / (self.warmup_steps + 1)',
    'scalar(self.peak) * step / self.warmup_steps',
    'tests/train/test_schedules.py',
  ),
  Mutation(
    'train-layer-decay-of-the-last-layer',
    'self.decay ** (num_layers - 1 - layer)',
    'self.decay ** (num_layers - layer)',
    'tests/train/test_groups.py',
  ),
  Mutation(
    'train-best-of-equal-checkpoints',
    'key=lambda step: (self._badness(ranked[step]), -step)',
    'key=lambda step: (self._badness(ranked[step]), step)',
    'tests/train/checkpoints/test_store.py',
  ),
  Mutation(
    'train-mup-steps-of-hidden-matrices',
    "('hidden', inputs**-0.5, 1 / inputs)",
    "('hidden', inputs**-0.5, 1.0)",
    'tests/train/test_mup.py',
  ),
  Mutation(
    'train-logged-learning-rate',
    'num_updates = step - self.faults.num_skipped',
    'num_updates = step',
    'tests/train/test_loop.py',
  ),
  Mutation(
    'train-padding-of-a-saved-vocabulary',
    'entries = shape and self._entries(shape, infos.get(name))',
    'entries = shape',
    'tests/train/test_init_from.py',
  ),
  Mutation(
    'train-dtype-of-inference',
    'program.blueprint.model(params, program.compute_dtype)',
    'program.blueprint.model(params)',
    'tests/end_to_end/test_load.py',
  ),
  Mutation(
    'statistics-gate-level',
    'return ALPHA * 6 / (math.pi * number) ** 2',
    'return ALPHA / number',
    'tests/statistics/test_gate.py',
  ),
  Mutation(
    'statistics-gate-fresh-seeds',
    'return is_side[table.variants] & is_seed[table.seeds]',
    'return is_side[table.variants]',
    'tests/statistics/test_gate.py',
  ),
  Mutation(
    'statistics-pairing-gain',
    'values.var(axis=1, ddof=1).sum()',
    'values.var(axis=1).sum()',
    'tests/statistics/test_referee.py',
  ),
  Mutation(
    'statistics-multiplier-direction',
    'return x - (own_log_factor - above) / own_exponent',
    'return (own_log_factor - above) / own_exponent - x',
    'tests/statistics/test_multipliers.py',
  ),
  Mutation(
    'statistics-lack-of-fit-freedom',
    'len(members) - laws.vector.shape[-1]',
    'len(members)',
    'tests/statistics/test_multipliers.py',
  ),
  Mutation(
    'statistics-last-step',
    'order[np.append(~again, True)]',
    'order[np.append(True, ~again)]',
    'tests/statistics/test_table.py',
  ),
  Mutation(
    'sweeps-corrections-never-decrease',
    'corrected[..., index] = largest = np.maximum(largest, error)',
    'corrected[..., index] = largest = error',
    'tests/statistics/test_comparisons.py',
  ),
  Mutation(
    'sweeps-noise-of-examples',
    'total = error**2 + self.variance',
    'total = error**2',
    'tests/statistics/test_example_noise.py',
  ),
  Mutation(
    'sweeps-paired-deviation',
    'deviation = np.sqrt(squares.sum(-1) / (count - 1))',
    'deviation = np.sqrt(squares.sum(-1) / count)',
    'tests/statistics/test_two_way.py tests/statistics/test_comparisons.py',
  ),
  Mutation(
    'sweeps-edge-at-an-included-limit',
    'if chosen == max(self.trials) and self.accepts(_next(chosen, math.inf)):',
    'if chosen == max(self.trials):',
    'tests/sweeps/test_tune.py',
  ),
  Mutation(
    'sweeps-choice-of-each-tuning-seed',
    '(_sign(plan) * tried[value].metrics[seed], value != self.own, value)',
    '(_sign(plan) * (tried[value].mean or 0.0), value != self.own, value)',
    'tests/sweeps/test_tune.py',
  ),
  Mutation(
    'sweeps-blocks-of-a-tuning-seed',
    'choices[seed] = seed if entry.trial.tuned_by is None else entry.trial.tuned_by',
    'choices[seed] = seed',
    'tests/sweeps/report/test_tuned.py',
  ),
  Mutation(
    'sweeps-one-value-for-all-seeds',
    "return 'one value was tuned for all seeds'",
    "return ''",
    'tests/sweeps/report/test_tuned.py',
  ),
  Mutation(
    'sweeps-partial-reports',
    'if plan.max_seeds is None or not complete or of_baseline & unfinished:',
    'if not complete or of_baseline & unfinished:',
    'tests/sweeps/report/test_looks.py',
  ),
  Mutation(
    'sweeps-margin-of-a-verdict',
    'counts = large and abs(test.difference or 0) >= (margin or 0)',
    'counts = large',
    'tests/statistics/test_comparisons.py',
  ),
  Mutation(
    'sweeps-bound-of-stepping-down',
    "if self.verdict not in ('helps', 'hurts') or self.by_rates or low is None or high is None:",
    'if True:',
    'tests/statistics/test_comparisons.py',
  ),
  Mutation(
    'sweeps-more-seeds-of-the-baseline',
    'for index, supported in enumerate(_supported(planned, groups, level)):',
    'for index, supported in enumerate([True] * len(planned)):',
    'tests/statistics/test_comparisons.py',
  ),
  Mutation(
    'sweeps-singular-variances',
    '    return np.linalg.pinv(mixing, rcond=_SINGULAR)\n  norms =',
    '    raise\n  norms =',
    'tests/statistics/test_comparisons.py',
  ),
  Mutation(
    'sweeps-pareto-equal-values',
    'other[0] <= point[0] and other[1] <= point[1]',
    'other[0] < point[0] and other[1] <= point[1]',
    'tests/statistics/test_summaries.py',
  ),
  Mutation(
    'sweeps-interval-level',
    't_ppf(ends, n - 1)',
    't_ppf(ends, n)',
    'tests/statistics/test_summaries.py',
  ),
  Mutation(
    'parallel-one-dimension-per-mesh-axis',
    'free = tuple(mesh_axis for mesh_axis in requested if mesh_axis not in used)',
    'free = tuple(requested)',
    'tests/parallel/test_mesh.py tests/parallel/test_layout.py',
  ),
  Mutation(
    'parallel-remaining-devices',
    'num_devices // fixed if size == -1 else size',
    'num_devices if size == -1 else size',
    'tests/parallel/test_mesh.py',
  ),
  Mutation(
    'interop-start-of-a-fused-parameter',
    'tensor = np.split(tensor, np.cumsum(sizes[:-1]), self.axis)[number]',
    'tensor = np.split(tensor, np.cumsum(sizes[:-1]), self.axis)[number - 1]',
    'tests/interop/test_layouts.py',
  ),
  Mutation(
    'interop-rotated-features-are-rounded-down',
    "int(head_dim * (rope['partial_rotary_factor'] or fields[self.fraction]))",
    "round(head_dim * (rope['partial_rotary_factor'] or fields[self.fraction]))",
    'tests/interop/test_rope.py',
  ),
  Mutation(
    'config-longest-scope',
    'for length in range(len(scope), -1, -1):',
    'for length in range(len(scope) + 1):',
    'tests/config/test_resolve.py tests/config/test_gin.py',
  ),
  Mutation(
    'config-command-line-overrides-scopes',
    'if other[: len(scope)] == scope and self._rank',
    'if other == scope and self._rank',
    'tests/config/test_resolve.py tests/config/test_gin.py',
  ),
  Mutation(
    'config-bool-is-no-number',
    'isinstance(value, _SCALARS[hint]) and not isinstance(value, bool)',
    'isinstance(value, _SCALARS[hint])',
    'tests/config/test_errors.py tests/config/test_gin.py',
  ),
  Mutation(
    'plan-passes-of-an-all-reduce',
    "passes = 2 if collective.kind == 'all-reduce' else 1",
    'passes = 1',
    'tests/plan/test_cost.py',
  ),
  Mutation(
    'plan-overlapped-collectives',
    'max(self.compute, self.overlapped) + self.exposed',
    'self.compute + self.exposed',
    'tests/plan/test_cost.py',
  ),
  Mutation(
    'tasks-boxes-around',
    'around = area(jnp.minimum(first, others), jnp.maximum(last, others_last))',
    'around = area(jnp.minimum(first, others), jnp.minimum(last, others_last))',
    'tests/domains/detection/test_task.py',
  ),
  Mutation(
    'data-boxes-flip',
    'edges = np.stack([1 - edges[:, 2], edges[:, 1], 1 - edges[:, 0], edges[:, 3]], axis=1)',
    'edges = np.stack([edges[:, 0], edges[:, 1], edges[:, 2], edges[:, 3]], axis=1)',
    'tests/domains/detection/test_transforms.py',
  ),
  Mutation(
    'train-early-stopping-restores-the-last-value',
    'if not self.since_best and not self.stops:',
    'if not self.stops:',
    'tests/train/test_early_stopping.py::test_a_restored_state_has_the_best_value_and_not_the_last',
  ),
  Mutation(
    'train-early-stopping-begins-with-nan',
    'if better and math.isfinite(value):',
    'if better:',
    'tests/train/test_early_stopping.py::test_a_first_value_that_is_nan_is_not_the_best',
  ),
  Mutation(
    'layers-router-z-loss-of-padding',
    'squares = jnp.square(jax.nn.logsumexp(choices.scores, axis=-1)) * choices.present',
    'squares = jnp.square(jax.nn.logsumexp(choices.scores, axis=-1))',
    'tests/layers/feed_forward/test_routers.py::test_the_z_loss_is_the_mean_over_the_tokens_of_a_row_without_padding',
  ),
  Mutation(
    'layers-recurrent-decoder-output-of-the-last-document',
    'fed = jnp.where(starts, 0, state.fed)',
    'fed = state.fed',
    'tests/layers/mixers/test_recurrent_decoder.py::test_a_packed_document_sees_neither_state_nor_output_of_the_document_before',
  ),
  Mutation(
    'models-stages-without-the-pattern-around',
    'narrowed = own if around is None else around & own',
    'narrowed = own',
    'tests/models/test_stages.py::test_layers_are_built_with_the_pattern_around_the_stages',
  ),
  Mutation(
    'models-ranks-ties-are-right',
    'return own[..., None] > others + rounding',
    'return own[..., None] >= others + rounding',
    'tests/models/test_ranks.py',
  ),
  Mutation(
    'models-ranks-nan-is-right',
    'return 1 + (~exceeds(own, others, rounding) & compared).sum(axis=-1)',
    'return 1 + ((own[..., None] <= others + rounding) & compared).sum(axis=-1)',
    'tests/models/test_ranks.py',
  ),
  Mutation(
    'models-ranks-first-of-several',
    '(below == scores.shape[-1] - 1) * (scores',
    '(below == below) * (scores',
    'tests/models/test_ranks.py',
  ),
  Mutation(
    'models-accuracy-ties',
    'return jnp.all((picked[..., None] > logits) | (index == labels[..., None]), axis=-1)',
    'return jnp.all((picked[..., None] >= logits) | (index == labels[..., None]), axis=-1)',
    'tests/tasks/test_losses.py',
  ),
  Mutation(
    'tasks-pairs-in-the-batch-of-the-run',
    'task.eval_rows or self.batch_size',
    'self.batch_size',
    'tests/domains/retrieval/test_contrastive.py::test_evaluation_compares_the_same_pairs_whatever_the_batch',
  ),
  Mutation(
    'tasks-boxes-of-nan',
    'if label >= 0 and np.isfinite(box).all():',
    'if label >= 0:',
    'tests/domains/detection/test_average_precision.py',
  ),
  Mutation(
    'tasks-forecast-in-units-of-the-context',
    "scale = batch['scale'][:, None]\n",
    "scale = out.heads['scale']\n",
    'tests/domains/series/test_forecast.py',
  ),
  Mutation(
    'tasks-forecast-without-a-context',
    "return (~jnp.isnan(batch['future']) & has_context) * batch['weight'][:, None, None]",
    "return ~jnp.isnan(batch['future']) * batch['weight'][:, None, None]",
    'tests/domains/series/test_forecast.py',
  ),
  Mutation(
    'tasks-forecasts-of-nan',
    'np.where(np.isnan(quantiles), np.inf, quantiles)',
    'quantiles',
    'tests/domains/series/test_forecast.py',
  ),
  Mutation(
    'tasks-sampled-paths-by-place',
    "row_keys(jax.random.key(self.seed), batch['index'])",
    "row_keys(jax.random.key(self.seed), len(batch['index']))",
    'tests/domains/series/test_autoregressive_forecasting.py',
  ),
  Mutation(
    'tasks-regression-moments-about-zero',
    'a, b = (v - (v * weights).sum() / jnp.maximum(total, 1e-9) for v in (x, y))',
    'a, b = x, y',
    'tests/tasks/test_regression.py::test_the_correlation_of_a_training_batch_is_that_of_its_rows_without_padding',
  ),
  Mutation(
    'tasks-fingerprint-of-three-pictures',
    'return SourceRows(self.source, split)',
    'return self.source.load(split)',
    'tests/tasks/test_fingerprints.py::test_the_fingerprint_follows_the_content_of_every_picture',
  ),
  Mutation(
    'data-held-out-by-text',
    "INPUTS = ('image', 'audio', 'video', 'text',",
    "INPUTS = ('text', 'image', 'audio', 'video',",
    'tests/data/sources/test_held_out.py',
  ),
  Mutation(
    'data-libreoffice-targets',
    "for side in ('source', 'target')}\n    return splits",
    "for side in ('source',)}\n    return splits",
    'tests/data/sources/test_folders.py',
  ),
  Mutation(
    'data-emoji-equal-pictures',
    'base = bases.setdefault(png, base_of(emoji))',
    'base = base_of(emoji)',
    'tests/samples/test_emoji.py',
  ),
)
