"""A trained model in Python: `t2x.load(folder)`."""

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
# Texts, or ids [batch, length].
Rows = Texts | np.ndarray


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A model with its parameters, its tokenizer and its task.

  Texts are given as strings, one row each, padded on the right to the longest, or as token ids int32
  [batch, length]; images as float32 [batch, height, width, channels], normalised as in training.

  Attributes:
    model: the module; call it as its class says.
    tokenizer: the fitted tokenizer; None for models of images.
    experiment: the config that the model was built from.
    inference: what evaluates it.
    step: of the checkpoint; None for a model folder.
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
    """What the model was trained for, bound to the tokenizer.

    Raises:
      UserError: the folder names none.
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
    """Continues, translates or classifies each prompt, all in one batch.

    Args:
      prompts: one text or several.
      strategy: how tokens are chosen; None: as the task says, or greedily.
      max_new_tokens: most tokens of an answer.
      num_return: answers for each prompt.
      seed: of sampling.

    Returns:
      For each prompt `prompt`, `text`, `tokens`, `log_probs`, `score`, and with several answers `others`.

    Raises:
      UserError: a prompt that the task cannot answer.
    """
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    for text in texts:
      self.task.check_prompt(text)
    answers = self.task.generate(
      self.model,
      texts,
      strategy=strategy or self.task.default_strategy,
      max_new_tokens=max_new_tokens,
      num_return=num_return,
      seed=seed,
    )
    return [
      {'prompt': text} | best | ({'others': others} if others else {})
      for text, (best, *others) in zip(texts, answers, strict=True)
    ]

  def encode(self, texts: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Ids and segments (1, or 0 for padding) of what the model reads, int32 [batch, length].

    Raises:
      UserError: there is no tokenizer.
    """
    if isinstance(texts, np.ndarray):
      return texts, np.ones_like(texts)
    spec, tokenizer = self.model.spec, self._text_tokenizer()
    if spec.inputs == 'a source and a target':
      rows = [[*tokenizer.before, *tokenizer.encode(t), tokenizer.eos_id] for t in _listed(texts)]
    elif spec.is_causal(2):
      rows = [tokenizer.prompt(text) for text in _listed(texts)]
    else:
      rows = [tokenizer.encode_pair(text).ids.tolist() for text in _listed(texts)]
    return self._padded(rows)

  def _text_tokenizer(self) -> Tokenizer:
    if self.tokenizer is None:
      raise UserError('the model has no tokenizer: give token ids, int32 [batch, length]')
    return self.tokenizer

  def logits(self, inputs: Any, targets: Rows | None = None) -> np.ndarray:
    """Logits in float32: [batch, length, vocab] for each token that the model reads, or [batch, classes].

    Args:
      inputs: texts, token ids or images.
      targets: for an encoder-decoder, the beginnings of the target texts, or ids that the decoder reads; None:
        empty texts.
    """
    return self._outputs(inputs, targets)[0]

  def hidden(
    self, inputs: Any, targets: Rows | None = None, *, side: str = 'decoder'
  ) -> list[np.ndarray]:
    """The residual stream after each layer, float32 [batch, length, width], from the first layer on.

    Args:
      inputs: as of `logits`.
      targets: as of `logits`.
      side: 'encoder' or 'decoder' of an encoder-decoder.
    """
    return self._by_layer('hidden', inputs, targets, side)

  def attention(
    self,
    inputs: Any,
    targets: Rows | None = None,
    *,
    side: str = 'decoder',
    sublayer: str = 'mixer',
  ) -> list[np.ndarray]:
    """Attention probabilities of each layer that attends, float32 [batch, heads, queries, keys].

    Args:
      inputs: as of `logits`.
      targets: as of `logits`.
      side: as of `hidden`.
      sublayer: 'mixer' for self-attention, 'cross' for the source.
    """
    return self._by_layer(f'{sublayer}.probabilities', inputs, targets, side)

  def evaluate(
    self, split: str | None = None, *, num_examples: int | None = None
  ) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The metrics of the task over a split and of the config's evaluators, and samples of what they generated.

    Args:
      split: of the task's source; None: its `eval_split`.
      num_examples: that an evaluator reads, spread evenly; None: all.
    """
    params = self.inference.program.blueprint.params(self.model)
    metrics: dict[str, Any] = self.inference.means(params, split or self.task.eval_split)
    names = list(self.experiment.evaluations)
    settings: dict[str, Any] = {'num_examples': num_examples}
    found = Evaluation({})
    if names:
      settings |= {} if split is None else {'split': split}
      found = self.inference.evaluators(params, names, **settings)
    return {**metrics, **found.metrics, **self.weights}, [dict(one) for one in found.samples]

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
    """Logits, and recorded arrays by name."""
    spec = self.model.spec
    if spec.inputs != 'a source and a target' and targets is not None:
      raise UserError(f'@{type(self.model).__name__} reads {spec.inputs}: leave out the targets')

    run: Callable[..., Any]
    if spec.inputs == 'images':

      def of_images(model, images):
        out = model.hidden(images, record=record)
        return model(images).x, out.recorded

      run = of_images
      arguments: tuple[Any, ...] = (jnp.asarray(inputs, jnp.float32),)
    elif spec.inputs == 'a text':

      def of_texts(model, ids, segments):
        tokens = Tokens.row(ids.shape[1], segments=segments)
        out: Output = model.hidden(ids, tokens=tokens, record=record)
        if 'class logits' in spec.outputs:
          return model.head.classify(out.x, segments, None), out.recorded
        return model.logits(out.x), out.recorded

      run, arguments = of_texts, self.encode(inputs)
    else:

      def of_pairs(model, source, source_segments, target, segments):
        out: Output = model.hidden(
          source,
          target,
          source_tokens=Tokens.row(source.shape[1], segments=source_segments),
          target_tokens=Tokens.row(target.shape[1], segments=segments),
          record=record,
        )
        return model.logits(out.x), out.recorded

      run = of_pairs
      sources = inputs if isinstance(inputs, np.ndarray) else _listed(inputs)
      beginnings = [''] * len(sources) if targets is None else targets
      arguments = (*self.encode(sources), *self._targets(beginnings))
    logits, recorded = jax.device_get(jax.jit(run)(self.model, *arguments))
    return np.asarray(logits, np.float32), recorded

  def _targets(self, texts: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Ids and segments of what the decoder reads."""
    if isinstance(texts, np.ndarray):
      return texts, np.ones_like(texts)
    tokenizer = self._text_tokenizer()
    target, begin = tokenizer.target, [tokenizer.start_id, *tokenizer.before]
    return self._padded([[*begin, *target.encode(text)] for text in _listed(texts)])

  def _by_layer(self, name: str, inputs: Any, targets: Rows | None, side: str) -> list[np.ndarray]:
    _, recorded = self._outputs(inputs, targets, frozenset({name.rpartition('.')[2]}))
    if self.model.spec.inputs == 'a source and a target':
      start = f'{side}.'
      recorded = {n.removeprefix(start): a for n, a in recorded.items() if n.startswith(start)}
    layers = in_order(recorded, name)
    if not layers:
      raise UserError(f"no layer of the model records '{name}'")
    return layers


def in_order(recorded: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
  """The arrays of one name by layer, from the first layer on.

  Args:
    recorded: arrays [repeats, ...] by '[stages.S.]blocks.I.NAME', as `Stack` returns them.
    name: the end of the names.
  """
  found = []
  for key, array in recorded.items():
    match = re.fullmatch(rf'(?:stages\.(\d+)\.)?blocks\.(\d+)\.{re.escape(name)}', key)
    if match:
      stage, block = int(match[1] or 0), int(match[2])
      found += [((stage, repeat, block), layer) for repeat, layer in enumerate(array)]
  return [np.asarray(layer, np.float32) for _, layer in sorted(found, key=lambda one: one[0])]


def _listed(texts: Texts) -> list[str]:
  return [texts] if isinstance(texts, str) else list(texts)


def load_run(
  folder: Path,
  experiment: Experiment,
  checkpoint: Literal['best', 'last'] | int = 'last',
  processes: Processes | None = None,
  batch_size: int | None = None,
) -> Loaded:
  """Loads a run folder; arguments as of `t2x.load`."""
  tokenizer = None
  if (folder / 'tokenizer').exists():
    tokenizer = load_tokenizer(folder / 'tokenizer')
  elif isinstance(experiment.task, TextTask):
    raise UserError(f'{folder} has no tokenizer: nothing was trained in it')
  inference = Inference(experiment, tokenizer, processes, batch_size=batch_size)
  params, step, weights = saved_params(
    inference.program, Checkpoints(folder / 'checkpoints'), checkpoint
  )
  return Loaded(inference.model(params), tokenizer, inference.experiment, inference, step, weights)


def load_model_folder(folder: Path, processes: Processes | None = None) -> Loaded:
  """Loads a Hugging Face model folder; arguments as of `t2x.load`."""
  from t2x.convert import ModelFolder

  found = ModelFolder(folder)
  inference = Inference(found.config.build(), found.tokenizer, processes)
  model = found.source.read(found.shapes)
  return Loaded(model, found.tokenizer, inference.experiment, inference)
