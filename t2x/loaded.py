"""Trained models for use in Python, returned by `t2x.load(folder)`."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from t2x.base.errors import UserError
from t2x.data import Tokenizer, load_tokenizer
from t2x.decode import Strategy
from t2x.decode.sampling import SampleSeed
from t2x.layers.marks import Marks
from t2x.parallel import Placed, Processes
from t2x.run_folder.lines import metric_lines
from t2x.tasks import MaskedLM, Task
from t2x.tasks.evaluators import Evaluation
from t2x.tasks.fill_mask import fill_masks
from t2x.tasks.inspection import Inspection, Rows, Texts, as_list
from t2x.train import Experiment
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.evaluation import Inference, saved_params
from t2x.train.params import Params


@dataclasses.dataclass(frozen=True, repr=False)
class Loaded:
  """A trained model with its tokenizer and task.

  Texts are strings, one row each, which are padded on the right to the longest one, or token ids int32
  [batch, length]. Other inputs are arrays, such as images float32 [batch, height, width, channels], normalised as in
  training.

  Attributes:
    params: all parameters by name, float32.
    tokenizer: the fitted tokenizer; None for image models.
    experiment: the config of the model.
    inference: computes metrics of the model.
    step: the step of the checkpoint; None for a model folder.
    weights: {'weights': 'ema'} if the parameters are a moving average.
    folder: the run folder or model folder.
  """

  params: Params
  tokenizer: Tokenizer | None
  experiment: Experiment
  inference: Inference
  step: int | None = None
  weights: Mapping[str, str] = dataclasses.field(default_factory=dict)
  folder: Path | None = None

  def __repr__(self) -> str:
    """Returns two lines: what was loaded, and what to do with it."""
    size = sum(array.size for array in self.params.values())
    task = self.experiment.task
    kind = 'no task' if task is None else type(task).__name__
    step = '' if self.step is None else f', step {self.step:,}'
    average = ' (moving average)' if self.weights else ''
    return (
      f'{type(self.inference.program.blueprint.shapes).__name__} in {self.folder}: {kind}, '
      f'{size:,} parameters{step}{average}\n'
      'generate, fill_masks, evaluate, history; logits, hidden, attention; model, task, tokenizer, params'
    )

  def history(self) -> list[dict[str, Any]]:
    """Returns the rows of metrics.jsonl, with `step` and `split`: `pandas.DataFrame(run.history())`.

    Raises:
      UserError: a model folder has no metrics.
    """
    path = (self.folder or Path()) / 'metrics.jsonl'
    if not path.is_file():
      raise UserError(f'{self.folder} has no metrics.jsonl: load a run folder')
    return metric_lines(path)

  @functools.cached_property
  def model(self) -> Placed:
    """The model, with its parameters in the dtype that the run computes in (`Trainer.compute_dtype`), on the devices of
    its mesh; `model.model` is the module, whose `spec` and methods are read there."""
    return self.inference.model(self.params)

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
    seed: SampleSeed = 0,
  ) -> list[dict[str, Any]]:
    """Continues, translates or classifies prompts in one batch.

    Args:
      prompts: one or several texts.
      strategy: the decoding strategy; None: the task's strategy, or greedy decoding.
      max_new_tokens: maximum number of generated tokens per completion.
      num_return: completions per prompt.
      seed: random seed of sampling, or (seed, number of the first prompt): a sample depends on both.

    Returns:
      One dict per prompt with `prompt`, `text`, `tokens`, `log_probs` and `score`, and with `others` if there
      are several completions.

    Raises:
      UserError: a prompt is invalid for the task.
    """
    texts = as_list(prompts)
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

  @property
  def fills_masks(self) -> bool:
    """Whether the run is a masked language model."""
    return all(isinstance(task, MaskedLM) for task in self.task.parts.values())

  def fill_masks(self, prompts: Texts, *, top_k: int = 5) -> list[dict[str, Any]]:
    """Ranks the tokens for each mask of prompts such as 'imp<mask> os'.

    Args:
      prompts: one or several texts with masks, spelled `<mask>` or as the tokenizer does.
      top_k: number of tokens per mask.

    Returns:
      One dict per prompt with `prompt`, `text` (with the likeliest tokens) and `masks`: for each mask a list
      of dicts with `id`, `token` and `probability`, likeliest first.

    Raises:
      UserError: the model is not a masked language model, or a prompt has no mask.
    """
    (task, *_) = self.task.parts.values()
    if not isinstance(task, MaskedLM):
      raise UserError(f'{type(task).__name__} does not fill masks: load a run of MaskedLM')
    return fill_masks(self.model, task.fitted, as_list(prompts), top_k, task.token_marks)

  def encode(self, texts: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Converts texts to token ids and segments (1 for tokens, 0 for padding), int32 [batch, length].

    Raises:
      UserError: the model has no tokenizer.
    """
    return self._inspection.encode(texts)

  @property
  def _inspection(self) -> Inspection:
    task = self.experiment.task
    return Inspection(self.model, self.tokenizer, Marks() if task is None else task.token_marks)

  def logits(self, inputs: object, targets: Rows | None = None) -> np.ndarray:
    """Returns logits, float32 [batch, length, vocab] for each input token, or [batch, classes].

    Args:
      inputs: texts, token ids or other arrays, such as images.
      targets: prefixes of the target texts or token ids for the decoder of an encoder-decoder; None: empty
        prefixes.
    """
    return self._inspection.outputs(inputs, targets)[0]

  def hidden(
    self, inputs: object, targets: Rows | None = None, *, side: str = 'decoder'
  ) -> list[np.ndarray]:
    """Returns the residual stream after each layer, float32 [batch, length, width], first layer first.

    Args:
      inputs: see `logits`.
      targets: see `logits`.
      side: 'encoder' or 'decoder' of an encoder-decoder.
    """
    return self._inspection.layers('hidden', inputs, targets, side)

  def attention(
    self,
    inputs: object,
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
      sublayer: name of the sublayer: in `Block`, 'mixer' for self-attention and 'cross' for cross-attention.
    """
    return self._inspection.layers(f'{sublayer}.probabilities', inputs, targets, side)

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
    result = self.evaluation(split, num_examples=num_examples)
    return dict(result.metrics), [dict(row) for row in result.samples]

  def evaluation(self, split: str | None = None, *, num_examples: int | None = None) -> Evaluation:
    """Returns metrics, samples and pictures; see `evaluate` for the arguments."""
    own = self.inference.evaluation(self.params, split or self.task.eval_split)
    names = list(self.experiment.evaluations)
    settings: dict[str, Any] = {'num_examples': num_examples}
    results = Evaluation({})
    if names:
      settings |= {} if split is None else {'split': split}
      results = self.inference.evaluators(self.params, names, **settings)
    metrics = {**own.metrics, **results.metrics, **self.weights}
    examples = {**own.examples, **results.examples}
    return dataclasses.replace(results, metrics=metrics, examples=examples)

  def with_checkpoint(self, checkpoints: Checkpoints, step: int) -> 'Loaded':
    """Returns the model with the parameters of another checkpoint of its run."""
    params, step, weights = saved_params(self.inference.program, checkpoints, step)
    return dataclasses.replace(self, params=params, step=step, weights=weights)


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
  elif experiment.task is not None and experiment.task.tokenizes:
    raise UserError(f'{folder} has no tokenizer: train the run first')
  inference = Inference(experiment, tokenizer, processes, batch_size=batch_size)
  params, step, weights = saved_params(
    inference.program, Checkpoints(folder / 'checkpoints'), checkpoint
  )
  return Loaded(params, tokenizer, inference.experiment, inference, step, weights, folder)


def load_model_folder(folder: Path, processes: Processes | None = None) -> Loaded:
  """Loads a Hugging Face model folder; see `t2x.load` for the arguments."""
  from t2x.interop.convert import ModelFolder

  imported = ModelFolder(folder)
  inference = Inference(imported.config.build(), imported.tokenizer, processes)
  params = inference.program.blueprint.params(imported.source.read(imported.shapes))
  return Loaded(params, imported.tokenizer, inference.experiment, inference, folder=folder)
