"""Trained models for use in Python, returned by `t2x.load(folder)`."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from t2x.data import Tokenizer, load_tokenizer
from t2x.decode import Strategy
from t2x.errors import UserError
from t2x.layers import Tokens
from t2x.models import Output
from t2x.parallel import Processes
from t2x.tasks import Task, TextTask
from t2x.tasks.evaluators import Evaluation
from t2x.train import Experiment
from t2x.train.checkpoints import Checkpoints
from t2x.train.inference import Inference, saved_params

Texts = str | Sequence[str]
# Texts, or token ids int32 [batch, length].
Rows = Texts | np.ndarray


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A trained model with its tokenizer and task.

  Texts are strings, one row each, which are padded on the right to the longest one, or token ids int32
  [batch, length]. Images are float32 [batch, height, width, channels], normalised as in training.

  Attributes:
    model: the module, with its parameters.
    tokenizer: the fitted tokenizer; None for image models.
    experiment: the config of the model.
    inference: computes metrics of the model.
    step: the step of the checkpoint; None for a model folder.
    weights: {'weights': 'ema'} if the parameters are a moving average.
  """

  model: Any
  tokenizer: Tokenizer | None
  experiment: Experiment
  inference: Inference
  step: int | None = None
  weights: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def task(self) -> Task:
    """The task that the model was trained for, bound to the tokenizer.

    Raises:
      UserError: the config has no task.
    """
    return self.experiment.evaluated_task()

  def generate(
    self,
    prompts: Texts,
    *,
    strategy: Strategy | None = None,
    max_new_tokens: int = 128,
    num_return: int = 1,
    seed: int = 0,
  ) -> list[dict[str, Any]]:
    """Continues, translates or classifies prompts in one batch.

    Args:
      prompts: one or several texts.
      strategy: the decoding strategy; None: the task's strategy, or greedy decoding.
      max_new_tokens: maximum number of generated tokens per completion.
      num_return: completions per prompt.
      seed: random seed of sampling.

    Returns:
      One dict per prompt with `prompt`, `text`, `tokens`, `log_probs` and `score`, and with `others` if there
      are several completions.

    Raises:
      UserError: a prompt is invalid for the task.
    """
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    for text in texts:
      self.task.check_prompt(text)
    completions = self.task.generate(
      self.model,
      texts,
      strategy=strategy or self.task.default_strategy,
      max_new_tokens=max_new_tokens,
      num_return=num_return,
      seed=seed,
    )
    return [
      {'prompt': text} | best | ({'others': others} if others else {})
      for text, (best, *others) in zip(texts, completions, strict=True)
    ]

  def encode(self, texts: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Converts texts to token ids and segments (1 for tokens, 0 for padding), int32 [batch, length].

    Raises:
      UserError: the model has no tokenizer.
    """
    if isinstance(texts, np.ndarray):
      return texts, np.ones_like(texts)
    spec, tokenizer = self.model.spec, self._text_tokenizer()
    if spec.inputs == 'a source and a target':
      rows = [[*tokenizer.before, *tokenizer.encode(t), tokenizer.eos_id] for t in _as_list(texts)]
    elif spec.is_causal(2):
      rows = [tokenizer.prompt(text) for text in _as_list(texts)]
    else:
      rows = [tokenizer.encode_pair(text).ids.tolist() for text in _as_list(texts)]
    return self._padded(rows)

  def _text_tokenizer(self) -> Tokenizer:
    if self.tokenizer is None:
      raise UserError('the model has no tokenizer: pass token ids, int32 [batch, length]')
    return self.tokenizer

  def logits(self, inputs: Any, targets: Rows | None = None) -> np.ndarray:
    """Returns logits, float32 [batch, length, vocab] for each input token, or [batch, classes].

    Args:
      inputs: texts, token ids or images.
      targets: prefixes of the target texts or token ids for the decoder of an encoder-decoder; None: empty
        prefixes.
    """
    return self._outputs(inputs, targets)[0]

  def hidden(
    self, inputs: Any, targets: Rows | None = None, *, side: str = 'decoder'
  ) -> list[np.ndarray]:
    """Returns the residual stream after each layer, float32 [batch, length, width], first layer first.

    Args:
      inputs: see `logits`.
      targets: see `logits`.
      side: 'encoder' or 'decoder' of an encoder-decoder.
    """
    return self._recorded_layers('hidden', inputs, targets, side)

  def attention(
    self,
    inputs: Any,
    targets: Rows | None = None,
    *,
    side: str = 'decoder',
    sublayer: str = 'mixer',
  ) -> list[np.ndarray]:
    """Returns the probabilities of each attention layer, float32 [batch, heads, queries, keys].

    Args:
      inputs: see `logits`.
      targets: see `logits`.
      side: see `hidden`.
      sublayer: 'mixer' for self-attention, 'cross' for cross-attention.
    """
    return self._recorded_layers(f'{sublayer}.probabilities', inputs, targets, side)

  def evaluate(
    self, split: str | None = None, *, num_examples: int | None = None
  ) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Computes the metrics of the task and of the config's evaluators.

    Args:
      split: the split of the task's source; None: its `eval_split`.
      num_examples: number of examples per evaluator, evenly spaced in the split; None: all.

    Returns:
      The metrics, and samples of generated texts.
    """
    params = self.inference.program.blueprint.params(self.model)
    metrics: dict[str, Any] = self.inference.means(params, split or self.task.eval_split)
    names = list(self.experiment.evaluations)
    settings: dict[str, Any] = {'num_examples': num_examples}
    results = Evaluation({})
    if names:
      settings |= {} if split is None else {'split': split}
      results = self.inference.evaluators(params, names, **settings)
    return {**metrics, **results.metrics, **self.weights}, [dict(row) for row in results.samples]

  def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    pad_id = self._text_tokenizer().pad_id
    ids = np.full((len(rows), max(map(len, rows))), pad_id, np.int32)
    segments = np.zeros_like(ids)
    for i, row in enumerate(rows):
      ids[i, : len(row)], segments[i, : len(row)] = row, 1
    return ids, segments

  def _outputs(
    self, inputs: Any, targets: Rows | None = None, record: frozenset[str] = frozenset()
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns logits, and recorded arrays by name."""
    spec = self.model.spec
    if spec.inputs != 'a source and a target' and targets is not None:
      raise UserError(f'@{type(self.model).__name__} reads {spec.inputs}: omit the targets')

    run: Callable[..., Any]
    if spec.inputs == 'images':

      def image_outputs(model, images):
        out = model.hidden(images, record=record)
        return model(images).x, out.recorded

      run = image_outputs
      arguments: tuple[Any, ...] = (jnp.asarray(inputs, jnp.float32),)
    elif spec.inputs == 'a text':

      def text_outputs(model, ids, segments):
        tokens = Tokens.row(ids.shape[1], segments=segments, right_padded=True)
        out: Output = model.hidden(ids, tokens=tokens, record=record)
        if 'class logits' in spec.outputs:
          return model.head.classify(out.x, segments, None), out.recorded
        return model.logits(out.x), out.recorded

      run, arguments = text_outputs, self.encode(inputs)
    else:

      def pair_outputs(model, source, source_segments, target, segments):
        out: Output = model.hidden(
          source,
          target,
          source_tokens=Tokens.row(source.shape[1], segments=source_segments, right_padded=True),
          target_tokens=Tokens.row(target.shape[1], segments=segments, right_padded=True),
          record=record,
        )
        return model.logits(out.x), out.recorded

      run = pair_outputs
      sources = inputs if isinstance(inputs, np.ndarray) else _as_list(inputs)
      prefixes = [''] * len(sources) if targets is None else targets
      arguments = (*self.encode(sources), *self._targets(prefixes))
    logits, recorded = jax.device_get(jax.jit(run)(self.model, *arguments))
    return np.asarray(logits, np.float32), recorded

  def _targets(self, texts: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Converts texts to token ids and segments for the decoder."""
    if isinstance(texts, np.ndarray):
      return texts, np.ones_like(texts)
    tokenizer = self._text_tokenizer()
    target, begin = tokenizer.target, [tokenizer.start_id, *tokenizer.before]
    return self._padded([[*begin, *target.encode(text)] for text in _as_list(texts)])

  def _recorded_layers(
    self, name: str, inputs: Any, targets: Rows | None, side: str
  ) -> list[np.ndarray]:
    _, recorded = self._outputs(inputs, targets, frozenset({name.rpartition('.')[2]}))
    if self.model.spec.inputs == 'a source and a target':
      start = f'{side}.'
      recorded = {n.removeprefix(start): a for n, a in recorded.items() if n.startswith(start)}
    layers = in_order(recorded, name)
    if not layers:
      raise UserError(f"no layer of the model records '{name}'")
    return layers


def in_order(recorded: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
  """Returns the recorded arrays of one name, first layer first.

  Args:
    recorded: arrays [repeats, ...] by '[stages.S.]blocks.I.NAME', from `Stack`.
    name: the end of the names.
  """
  layers = []
  for key, array in recorded.items():
    match = re.fullmatch(rf'(?:stages\.(\d+)\.)?blocks\.(\d+)\.{re.escape(name)}', key)
    if match:
      stage, block = int(match[1] or 0), int(match[2])
      layers += [((stage, repeat, block), layer) for repeat, layer in enumerate(array)]
  return [np.asarray(layer, np.float32) for _, layer in sorted(layers, key=lambda item: item[0])]


def _as_list(texts: Texts) -> list[str]:
  return [texts] if isinstance(texts, str) else list(texts)


def load_run(
  folder: Path,
  experiment: Experiment,
  checkpoint: Literal['best', 'last'] | int = 'last',
  processes: Processes | None = None,
  batch_size: int | None = None,
) -> Loaded:
  """Loads a run folder; see `t2x.load` for the arguments."""
  tokenizer = None
  if (folder / 'tokenizer').exists():
    tokenizer = load_tokenizer(folder / 'tokenizer')
  elif isinstance(experiment.task, TextTask):
    raise UserError(f'{folder} has no tokenizer: train the run first')
  inference = Inference(experiment, tokenizer, processes, batch_size=batch_size)
  params, step, weights = saved_params(
    inference.program, Checkpoints(folder / 'checkpoints'), checkpoint
  )
  return Loaded(inference.model(params), tokenizer, inference.experiment, inference, step, weights)


def load_model_folder(folder: Path, processes: Processes | None = None) -> Loaded:
  """Loads a Hugging Face model folder; see `t2x.load` for the arguments."""
  from t2x.convert import ModelFolder

  imported = ModelFolder(folder)
  inference = Inference(imported.config.build(), imported.tokenizer, processes)
  model = imported.source.read(imported.shapes)
  return Loaded(model, imported.tokenizer, inference.experiment, inference)
