"""Scores of generated targets: BLEU (Papineni et al. 2002), chrF (Popović 2015) and the fraction of exact matches."""

import abc
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.decode import Strategy
from t2x.tasks.evaluators import NUM_SAMPLES, Evaluation, TaskEvaluator, text_of
from t2x.tasks.prediction import in_batches

__all__ = ['Translations']


@runtime_checkable
class TargetTask(Protocol):
  """Interface of tasks that generate the `target` text of an example.

  Attributes:
    strategy: decoding strategy.
  """

  strategy: Strategy

  @property
  def answer_length(self) -> int:
    """Maximum number of generated tokens, including eos."""
    ...

  def prompt_of(self, example: Mapping[str, Any]) -> Any:
    """Returns the prompt of `generate` for an example."""
    ...

  def fits(self, example: Mapping[str, Any]) -> bool:
    """Returns whether the rows contain an example, so that all metrics of a split are over the same ones."""
    ...

  def check_generate(self, model: object, strategy: Strategy, batch_size: int) -> None:
    """Raises UserError if the model cannot generate for a batch of sources of the maximum length."""
    ...

  def generate(
    self, model: object, prompts: Sequence[Any], **settings: Any
  ) -> list[list[dict[str, Any]]]:
    """Generates the targets of prompts; see `Task.generate`."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedTargets(TaskEvaluator):
  """Scores generated targets of the examples of a split, without too long examples, which the rows drop.

  Attributes:
    strategy: decoding strategy; None: the task's.
    batch_size: sources per batch.
  """

  strategy: Strategy | None = None
  batch_size: Size = 64

  def check(self, task, model):
    """Also raises UserError if the model cannot generate for the longest source."""
    super().check(task, model)
    task.check_generate(model, self.strategy or task.strategy, self.batch_size)

  def __call__(self, evaluated):
    """Generates the targets of the examples and returns the metrics."""
    task = evaluated.task
    split, model = self._examples(evaluated.task), evaluated.model()
    examples = [example for example in (split[i] for i in range(len(split))) if task.fits(example)]
    if not examples:
      raise UserError(f'{type(self).__name__}: all of the {len(split)} examples are too long')

    def generated(pairs):
      return task.generate(
        model,
        [task.prompt_of(pair) for pair in pairs],
        strategy=self.strategy or task.strategy,
        max_new_tokens=task.answer_length,
      )

    results = in_batches(
      examples,
      generated,
      self.batch_size,
      size=lambda pair: len(pair['source']),
      watched=evaluated.watched,
    )
    pairs, answers = zip(*results, strict=True)
    result = self._score(pairs, [text_of(answer[0]) for answer in answers])
    if len(examples) == len(split):
      return result
    dropped = float(len(split) - len(examples))
    return dataclasses.replace(result, metrics={**result.metrics, 'dropped': dropped})

  @abc.abstractmethod
  def _score(self, pairs: Sequence[Mapping[str, Any]], outputs: Sequence[str]) -> Evaluation:
    """Returns the metrics of the generated targets of examples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translations(GeneratedTargets):
  """Computes BLEU and chrF of translations with sacrebleu, and the fraction of exact matches.

  Attributes:
    language: code of the target language, which selects sacrebleu's tokenizer (`zh`, `ja` and `ko` have
      their own); '': the default, 13a.
    batch_size: sentences per batch.
  """

  language: str = ''

  kinds: ClassVar[tuple[type, ...]] = (TargetTask,)
  names: ClassVar[str] = '@Translation and @PrefixLM and @Captions'

  def check(self, task, model):
    """Also raises UserError if the language is unknown or the model cannot translate the longest source."""
    self._bleu()
    super().check(task, model)

  def _bleu(self) -> Any:
    import sacrebleu

    try:
      return sacrebleu.BLEU(trg_lang=self.language)
    except (ImportError, RuntimeError, ValueError) as error:
      raise UserError(f"Translations.language = '{self.language}': {error}") from error

  def _references(self, pair: Mapping[str, Any]) -> Sequence[str]:
    """Returns the translations of an example that are right."""
    return [pair['target']]

  def _score(self, pairs, outputs):
    import sacrebleu

    bleu, chrf = self._bleu(), sacrebleu.CHRF()
    references = [self._references(pair) for pair in pairs]
    exact = np.array([o in own for o, own in zip(outputs, references, strict=True)], float)
    # sacrebleu reads the first reference of all, then the second, ...
    streams = list(itertools.zip_longest(*references))
    metrics: dict[str, float | str] = {
      'examples': float(len(pairs)),
      'bleu': bleu.corpus_score(outputs, streams).score,
      'bleu_signature': str(bleu.get_signature()),
      'chrf': chrf.corpus_score(outputs, streams).score,
      'chrf_signature': str(chrf.get_signature()),
      'exact_match': float(np.mean(exact)),
    }
    samples = [
      {**_texts(pair), 'output': output}
      for pair, output in list(zip(pairs, outputs, strict=True))[:NUM_SAMPLES]
    ]
    return Evaluation(metrics, samples, examples={'exact_match': exact})


def _texts(pair: Mapping[str, Any]) -> dict[str, str]:
  """Returns source and target of an example; sources that are no text are left out."""
  return {name: pair[name] for name in ('source', 'target') if isinstance(pair[name], str)}
